// The operations on rows that are all memory traffic: look-ups, norms, rotary embedding, gates,
// copies and conversions. Arguments are the seam's, already checked.

#pragma once

#include "backend/backend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::elementwise {

// Rows on the device that are looked up by id.
struct DeviceTable final : Table {
  Tensor rows;  // (n_rows, d), f32, or bf16 where that holds them exactly
  DeviceArray<std::byte> memory;
};

struct EmbedRows {
  ConstTensor table;
  const int32_t* ids;  // (n_rows), on the device
  float scale;
  int32_t zero_id;  // -1: none
  bool accumulate;
  Tensor out;
};
void embed(Context& context, const EmbedRows& args);
void norm(Context& context, const NormArgs& args);
void norm_heads(Context& context, const HeadNormArgs& args);
// positions: on the device, or null.
void rotate(Context& context, const RotaryArgs& args, const int32_t* positions);
void store_kv(Context& context, const StoreKvArgs& args);
void glu(Context& context, const GluArgs& args);
void soft_cap(Context& context, float cap, Tensor x);
void convert(Context& context, ConstTensor from, Tensor to);
// rows: on the device; null in add_rows(): row for row.
void gather_rows(Context& context, ConstTensor from, const int32_t* rows, Tensor to);
void add_rows(Context& context, ConstTensor from, const int32_t* rows, Tensor to);
// next, out: (n_rows), on the device.
void compare_scores(Context& context, const ConstTensor& base, const ConstTensor& scores,
                    const int32_t* next, TokenComparison* out);
// to (n_in, …): columns [first, first + from.rows()) of it become the rows of `from`.
void transpose_into(Context& context, ConstTensor from, int64_t first, Tensor to);
// Sets *inexact to 1 where an element of x (f32) is not a bf16 number.
void find_inexact(Context& context, ConstTensor x, int32_t* inexact);

}  // namespace sluice::impl::cuda::elementwise
