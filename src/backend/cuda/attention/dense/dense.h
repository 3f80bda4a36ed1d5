// Exact attention on the device. docs/algorithm.md, section 3, mode `dense`.

#pragma once

#include "backend/backend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::dense {

// Throws Error for heads that attention here does not take; group: query heads of a key head.
void check_heads(int64_t head_dim, int64_t group);

// Whether the tensor cores can take queries and hand out answers of that kind.
bool fits_tiles(DType dtype, int64_t head_dim, const ConstTensor& queries, const ConstTensor& out);

// One call as kernels take it.
struct AttendView {
  const std::byte* queries;
  const std::byte* keys;    // (n_batch, n_kv_heads, capacity, head_dim)
  const std::byte* values;  // (n_batch, n_kv_heads, capacity, head_dim)
  std::byte* out;
  int64_t query_stride, out_stride;  // of rows, in elements
  int64_t n_batch, n_heads, n_kv_heads, capacity, head_dim;
  int64_t n_tokens, first_position;
  int64_t window;  // 0: none
  bool causal;
  float scale;
  float cap = 0;  // of scores before they are scaled (AttendDenseArgs::unscaled_cap); 0: none

  int64_t n_keys() const { return first_position + n_tokens; }
  int64_t group() const { return n_heads / n_kv_heads; }
};

// Those that do not say otherwise take no cap.

// Plain and slow: f32, and heads of odd sizes; capped or not.
void attend_plain(Context& context, DType dtype, const AttendView& view);
// bf16, on the tensor cores; head_dim a multiple of 8 up to 256, rows aligned to 16 bytes; capped
// or not.
void attend_tiles(Context& context, const AttendView& view);
// The same on compute capability 9.0, whose tensor cores need other instructions.
void attend_hopper(Context& context, const AttendView& view);
// The same as attend_tiles for few queries: keys are split over blocks, whose parts are put
// together after. Capped or not.
void attend_split(Context& context, const AttendView& view);

// The same for one query to a sequence, of heads that share no keys.
void attend_one(Context& context, const AttendView& view);

// The same, fused with the rotation of query and key and with the store of key and value. Returns
// false, and does nothing, where the kernel does not support these tensors.
bool attend_next(Context& context, const AttendView& view, const RotaryArgs* rotary,
                 const StoreKvArgs& store);

// Sequences of a ragged batch, as a kernel takes them: in its parameters, so that nothing is
// copied.
constexpr int kMostRagged = 64;
struct RaggedView {
  std::byte* keys[kMostRagged];  // caches, (n_kv_heads, capacity, head_dim)
  std::byte* values[kMostRagged];
  int32_t capacity[kMostRagged], position[kMostRagged], row[kMostRagged];
  int32_t n_sequences;
  const int32_t* recorded;  // positions of all rows, in work that is recorded; else null
};
// The new keys and values of a ragged batch.
struct RaggedRows {
  const std::byte *keys, *values;  // (n_rows, n_kv_heads, head_dim)
  int64_t key_stride, value_stride;
};
// Stores one token of each sequence and attends to it and those before, in kernels for all
// sequences. bf16, as attend_split. view has what they share, the largest position and capacity,
// and queries and out of all rows.
void attend_ragged(Context& context, const AttendView& view, const RaggedRows& rows,
                   const RaggedView& ragged);

void attend_dense(Context& context, const AttendDenseArgs& args);
// Whether it could be done in one kernel; else nothing was done.
bool store_and_attend(Context& context, const RotaryArgs* rotary, const StoreKvArgs& store,
                      const AttendDenseArgs& args);
// Sequences of one new token each. Whether the kernels support these tensors; else nothing was
// done.
bool attend_ragged(Context& context, const AttendRaggedArgs& args,
                   std::span<const RaggedSequence> sequences);

}  // namespace sluice::impl::cuda::dense
