// Gathers the near tokens of a prefill pass by position, and stores those that stay unsettled.

#include <algorithm>

#include "backend/cuda/attention/refine/kernels.h"

namespace sluice::impl::cuda::refine {
namespace {

constexpr int kThreads = 128;

// Rows in units of 16 bytes, or of one element where they are not aligned.
template <typename Unit>
struct Rows {
  const Unit* keys;                  // (n_tokens, n_kv_heads, row_units)
  const Unit* values;                // (n_tokens, n_kv_heads, row_units)
  int64_t key_stride, value_stride;  // of tokens, in units
  int row_units;
  Unit* to_keys;         // (n_kv_heads, n, row_units), or null
  Unit* to_values;       // (n_kv_heads, n, row_units)
  int64_t first, n;      // positions to read
  int64_t first_stored;  // position from which rows go into the cache
};

// A thread block per token.
template <typename Unit>
__global__ void gather(const __grid_constant__ RefineView view,
                       const __grid_constant__ Rows<Unit> rows) {
  const int64_t at = blockIdx.x, position = rows.first + at;
  const int64_t token = position - view.first_position;
  auto* cache_keys = reinterpret_cast<Unit*>(view.cache.keys);
  auto* cache_values = reinterpret_cast<Unit*>(view.cache.values);
  const int n = static_cast<int>(view.n_kv_heads) * rows.row_units;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const int head = i / rows.row_units, unit = i % rows.row_units;
    const int64_t row = token < 0 ? view.cache.row(head, position, view.segment)
                                  : head * view.cache.capacity + position;
    const int64_t cached = row * rows.row_units + unit;
    const Unit key = token < 0 ? cache_keys[cached] : rows.keys[token * rows.key_stride + i];
    const Unit value =
        token < 0 ? cache_values[cached] : rows.values[token * rows.value_stride + i];
    if (token >= 0 && position >= rows.first_stored) {
      cache_keys[cached] = key;
      cache_values[cached] = value;
    }
    if (rows.to_keys == nullptr) continue;
    const int64_t to = (head * rows.n + at) * rows.row_units + unit;
    rows.to_keys[to] = key;
    rows.to_values[to] = value;
  }
}

struct Destination {
  std::byte *keys, *values;  // or null
  int64_t first, n;          // positions
};

void launch(Context& context, const RefineView& view, const PassRows& pass, const Destination& to,
            DType dtype) {
  if (to.n == 0) return;
  const int64_t size = element_bytes(dtype);
  const auto with_units = [&]<typename Unit>(Unit) {
    const int64_t n = int64_t{sizeof(Unit)} / size;  // elements
    const Rows<Unit> rows{reinterpret_cast<const Unit*>(pass.keys),
                          reinterpret_cast<const Unit*>(pass.values),
                          pass.key_stride / n,
                          pass.value_stride / n,
                          static_cast<int>(view.head_dim / n),
                          reinterpret_cast<Unit*>(to.keys),
                          reinterpret_cast<Unit*>(to.values),
                          to.first,
                          to.n,
                          view.last_border()};
    gather<<<static_cast<unsigned>(to.n), kThreads, 0, context.stream()>>>(view, rows);
    check_launch("gather of recent tokens");
  };
  const auto aligned = [&](const std::byte* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * size % 16 == 0;
  };
  if (view.head_dim * size % 16 == 0 && aligned(pass.keys, pass.key_stride) &&
      aligned(pass.values, pass.value_stride))
    with_units(uint4{});
  else if (dtype == DType::kBF16)
    with_units(uint16_t{});
  else
    with_units(uint32_t{});
}

}  // namespace

void gather_recent(Context& context, const RefineView& view, const PassRows& pass, std::byte* keys,
                   std::byte* values, DType dtype) {
  launch(context, view, pass, {keys, values, view.recent.first, view.recent.n}, dtype);
}

void store_recent(Context& context, const RefineView& view, const PassRows& pass, DType dtype) {
  const int64_t first = std::max(view.last_border(), view.first_position);
  launch(context, view, pass,
         {nullptr, nullptr, first, view.first_position + view.n_tokens - first}, dtype);
}

}  // namespace sluice::impl::cuda::refine
