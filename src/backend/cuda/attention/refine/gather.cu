// Gathers the near tokens of a prefill pass by position, and stores those that stay unsettled.

#include "backend/cuda/attention/refine/kernels.h"

namespace sluice::cuda::refine {
namespace {

constexpr int kThreads = 128;

// Rows in units of 16 bytes, or of one element where they are not aligned.
template <typename Unit>
struct Rows {
  const Unit* keys;                  // (n_tokens, n_kv_heads, row_units)
  const Unit* values;                // (n_tokens, n_kv_heads, row_units)
  int64_t key_stride, value_stride;  // of tokens, in units
  int row_units;
  int64_t first_stored;  // position from which rows go into the cache
};

// A thread block per token.
template <typename Unit>
__global__ void gather(const __grid_constant__ RefineView view,
                       const __grid_constant__ Rows<Unit> rows) {
  const int64_t at = blockIdx.x, position = view.recent.first + at;
  const int64_t token = position - view.first_position;
  auto* cache_keys = reinterpret_cast<Unit*>(view.cache.keys);
  auto* cache_values = reinterpret_cast<Unit*>(view.cache.values);
  const int n = static_cast<int>(view.n_kv_heads) * rows.row_units;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const int head = i / rows.row_units, unit = i % rows.row_units;
    const int64_t cached = (head * view.cache.capacity + position) * rows.row_units + unit;
    const Unit key = token < 0 ? cache_keys[cached] : rows.keys[token * rows.key_stride + i];
    const Unit value =
        token < 0 ? cache_values[cached] : rows.values[token * rows.value_stride + i];
    if (token >= 0 && position >= rows.first_stored) {
      cache_keys[cached] = key;
      cache_values[cached] = value;
    }
    const int64_t to = (head * view.recent.n + at) * rows.row_units + unit;
    reinterpret_cast<Unit*>(view.recent.keys)[to] = key;
    reinterpret_cast<Unit*>(view.recent.values)[to] = value;
  }
}

template <typename Unit>
void launch(Context& context, const RefineView& view, const Rows<Unit>& rows) {
  gather<<<static_cast<unsigned>(view.recent.n), kThreads, 0, context.stream()>>>(view, rows);
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
                      key_stride / n, value_stride / n, static_cast<int>(view.head_dim / n),
                      view.last_border()});
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
