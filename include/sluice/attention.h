// Causal attention on queries, keys and values of the caller's own, dense or refined, without a
// model.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sluice/attention_device.h"
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

// Tokens in the memory of a device, in its dtype: that of the host for Device::kCpu and kReference,
// that of the GPU for kCuda. The heads of a token follow each other, and so do the numbers of a
// head. Strides are numbers from a token to the next; 0: tokens follow each other too.
struct DeviceTokens {
  int64_t n = 0;
  const void* q = nullptr;  // (n, n_heads, head_dim)
  const void* k = nullptr;  // (n, n_kv_heads, head_dim)
  const void* v = nullptr;  // (n, n_kv_heads, head_dim)
  void* out = nullptr;      // (n, n_heads, head_dim)
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
};

// How many keys an Attention has read. It outlives the Attention.
class SLUICE_API AttentionReads {
 public:
  // Keys that all queries read, means of clusters included, as a share of those that dense
  // attention reads. 1 for dense attention, and before the first token. Waits for a GPU.
  double keys_read() const;
  // The same of each query head, (n_heads).
  std::vector<double> by_head() const;

  struct SLUICE_LOCAL State;  // of the library

 private:
  friend class Attention;
  explicit AttentionReads(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

// The keys and values of one layer of one sequence. Their memory grows with the tokens. Move-only,
// for one thread at a time.
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
  // The same on a device that several share.
  Attention(const AttentionShape& shape, const AttentionOptions& options,
            const AttentionDevice& device);
  Attention(const AttentionShape& shape, const Plan& plan, int64_t layer,
            const AttentionDevice& device);
  Attention(Attention&& other) noexcept;
  Attention& operator=(Attention&& other) noexcept;
  ~Attention();

  // Takes in the next n tokens, one or more, and answers their queries over all tokens up to each.
  // q and out: (n, n_heads, head_dim); k and v: (n, n_kv_heads, head_dim); float32, row by row,
  // rotary embedding applied. Throws Error for sizes that are not so, and for more tokens than
  // there is room for; both change nothing.
  void append(std::span<const float> q, std::span<const float> k, std::span<const float> v,
              std::span<float> out);
  // The same of tokens in the device's memory, which are read and written in place. On a GPU it
  // only asks for the work: it is done in the order of the device's stream, nothing is copied to
  // the host, and nobody waits. Throws Error as above, for missing tensors, and for strides that
  // are shorter than a token or negative.
  void append(const DeviceTokens& tokens);

  const AttentionShape& shape() const;
  const AttentionDevice& device() const;
  bool is_dense() const;     // exact, for any input
  int64_t length() const;    // tokens taken in
  double keys_read() const;  // as AttentionReads has it, with all queries so far
  std::vector<double> keys_read_by_head() const;
  // The same to be looked at later; on a GPU, asking for it waits for nothing.
  AttentionReads reads() const;
  // Forgets everything.
  void clear();

  struct SLUICE_LOCAL State;  // of the library

 private:
  std::unique_ptr<State> state_;
};

}  // namespace sluice
