// Causal attention on queries, keys and values of the caller's own, dense or refined, without a
// model.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sluice/model.h"
#include "sluice/plan.h"

namespace sluice {

struct AttentionShape {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;  // divides n_heads: query heads in equal groups share a key head
  int64_t head_dim = 0;
  int64_t capacity = 0;  // tokens that a sequence may have
  float scale = 0;       // of scores; 0: 1 / sqrt(head_dim)
};

// The keys and values of one layer of one sequence. Move-only, for one thread at a time.
class SLUICE_API Attention {
 public:
  // options.mode: kDense, or kRefine with delta, strict, window and sinks; the other modes select
  // tokens by a model's activations, and are an Error here. Throws Error too for sizes that are not
  // positive or do not divide, for options out of range, and for a device that is not there.
  explicit Attention(const AttentionShape& shape, const AttentionOptions& options = {},
                     Device device = Device::kCpu, DType dtype = DType::kF32);
  // A layer of a plan, counted from 0, with the settings of each of its heads. Throws Error too for
  // a layer that the plan does not have, for one of another mode, and for other numbers of heads.
  Attention(const AttentionShape& shape, const Plan& plan, int64_t layer,
            Device device = Device::kCpu, DType dtype = DType::kF32);
  Attention(Attention&& other) noexcept;
  Attention& operator=(Attention&& other) noexcept;
  ~Attention();

  // Takes in the next n tokens, one or more, and answers their queries over all tokens up to each.
  // q and out: (n, n_heads, head_dim); k and v: (n, n_kv_heads, head_dim); float32, row by row,
  // rotary embedding applied. Throws Error for sizes that are not so, and for more tokens than
  // there is room for; both change nothing.
  void append(std::span<const float> q, std::span<const float> k, std::span<const float> v,
              std::span<float> out);

  bool is_dense() const;   // exact, for any input
  int64_t length() const;  // tokens taken in
  // Keys that all queries so far read, means of clusters included, as a share of those that dense
  // attention reads. 1 for dense attention, and before the first token.
  double keys_read() const;
  // The same of each query head, (n_heads).
  std::vector<double> keys_read_by_head() const;
  // Forgets everything.
  void clear();

  struct SLUICE_LOCAL State;  // of the library

 private:
  std::unique_ptr<State> state_;
};

}  // namespace sluice
