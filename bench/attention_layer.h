// One attention layer on tokens of planted redundancy, dense and accelerated, as pieces of work to
// be timed.

#pragma once

#include <memory>

#include "backend/backend.h"

namespace sluice::impl::bench {

struct AttentionCase {
  int64_t n_tokens, d_model, head_dim;
  int64_t n_reps;  // planted
  DType dtype;
  bool causal = true;
  int64_t window = 128, block = 128;
};

// Operations, a multiplication and an addition counting as two.
struct AttentionFlops {
  double dense, keys, reps;  // attention alone
  double select;             // validation of an inherited set
  double project, project_reps;
};
AttentionFlops attention_flops(const AttentionCase& c, int64_t n_reps);

class AttentionLayer {
 public:
  explicit AttentionLayer(const AttentionCase& c);

  void dense();      // keys and values stored, attention
  void select();     // an inherited set validated, owners found
  void keys();       // attention on clusters, with the set of the last select()
  void project();    // q, k, v and output projections of every token
  void copy();       // the representatives' projections, attention among them, outputs handed out
  void bare_gram();  // a plain product of the size of select(), by the same kernels

  int64_t n_reps() const;    // that select() found
  int64_t products() const;  // pairs of rows that select() multiplied
  static double bare_gram_flops(const AttentionCase& c);

 private:
  struct Weights;
  AttentionCase c_;
  std::unique_ptr<Backend> backend_, bf16_;
  std::shared_ptr<Weights> weights_;
  Buffer rows_, residual_, qkv_, attended_, out_, gathered_;
  Buffer key_cache_, value_cache_;
  Buffer gram_x_, gram_out_;
  std::vector<uint8_t> inherited_;
  std::unique_ptr<Selector> selector_;
  std::unique_ptr<KeysAttention> keys_;
  std::unique_ptr<RepsAttention> reps_;
};

}  // namespace sluice::impl::bench
