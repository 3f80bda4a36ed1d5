// Gathers the near tokens of a prefill pass by position, and stores those that stay unsettled.

#include "backend/cuda/attention/refine/kernels.h"

namespace sluice::cuda::refine {
namespace {

constexpr int kThreads = 256;

// Rows in units of 16 bytes, or of one element where they are not aligned.
template <typename Unit>
struct Rows {
  const Unit* keys;                  // (n_tokens, n_kv_heads, row_units)
  const Unit* values;                // (n_tokens, n_kv_heads, row_units)
  int64_t key_stride, value_stride;  // of tokens, in units
  int64_t row_units;
};

// A thread per unit of (recent.n, n_kv_heads, row_units).
template <typename Unit>
__global__ void gather(const __grid_constant__ RefineView view,
                       const __grid_constant__ Rows<Unit> rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t unit = i % rows.row_units, row = i / rows.row_units;
  const int64_t head = row % view.n_kv_heads, at = row / view.n_kv_heads;
  if (at >= view.recent.n) return;
  const int64_t position = view.recent.first + at;
  const int64_t cached = (head * view.cache.capacity + position) * rows.row_units + unit;
  auto* cache_keys = reinterpret_cast<Unit*>(view.cache.keys);
  auto* cache_values = reinterpret_cast<Unit*>(view.cache.values);
  Unit key, value;
  if (position < view.first_position) {
    key = cache_keys[cached];
    value = cache_values[cached];
  } else {
    const int64_t token = position - view.first_position, in_row = head * rows.row_units + unit;
    key = rows.keys[token * rows.key_stride + in_row];
    value = rows.values[token * rows.value_stride + in_row];
    if (position >= view.last_border()) {
      cache_keys[cached] = key;
      cache_values[cached] = value;
    }
  }
  const int64_t to = (head * view.recent.n + at) * rows.row_units + unit;
  reinterpret_cast<Unit*>(view.recent.keys)[to] = key;
  reinterpret_cast<Unit*>(view.recent.values)[to] = value;
}

template <typename Unit>
void launch(Context& context, const RefineView& view, const Rows<Unit>& rows) {
  const int64_t n = view.recent.n * view.n_kv_heads * rows.row_units;
  gather<<<static_cast<unsigned>(ceil_div(n, kThreads)), kThreads, 0, context.stream()>>>(view,
                                                                                          rows);
  check_launch("gather of recent tokens");
}

}  // namespace

void gather_recent(Context& context, const RefineView& view, const std::byte* keys,
                   int64_t key_stride, const std::byte* values, int64_t value_stride, DType dtype) {
  const int64_t size = element_bytes(dtype);
  const auto with_units = [&]<typename Unit>(Unit) {
    const int64_t n = int64_t{sizeof(Unit)} / size;  // elements
    launch(context, view,
           Rows<Unit>{reinterpret_cast<const Unit*>(keys), reinterpret_cast<const Unit*>(values),
                      key_stride / n, value_stride / n, view.head_dim / n});
  };
  const auto aligned = [&](const std::byte* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * size % 16 == 0;
  };
  if (view.head_dim * size % 16 == 0 && aligned(keys, key_stride) && aligned(values, value_stride))
    with_units(uint4{});
  else if (dtype == DType::kBF16)
    with_units(uint16_t{});
  else
    with_units(uint32_t{});
}

}  // namespace sluice::cuda::refine
