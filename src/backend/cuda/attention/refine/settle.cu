// Settles segments: pages of similar keys, permuted rows, means and statistics. One thread block
// per segment and key/value head.

#include "backend/cuda/attention/refine/pages.cuh"

namespace sluice::cuda::refine {
namespace {

// The tokens to settle, by position. Strides are in elements.
struct Source {
  const std::byte* keys;    // (n_kv_heads, rows, head_dim)
  const std::byte* values;  // (n_kv_heads, rows, head_dim)
  int64_t head_stride, key_stride, value_stride;
  int64_t first;     // position of a head's first row
  bool one_segment;  // rows are those of the segment alone; first has no meaning
};
__device__ void load_rows(const SharedKeys& to, const __nv_bfloat16* from, int64_t stride,
                          int n_rows, int head_dim) {
  for_units(n_rows, head_dim / 8, static_cast<int>(threadIdx.x), split_threads(),
            [&](int row, int unit) {
              copy_async(to.unit(row, unit), from + row * stride + unit * 8, true);
            });
  commit_copies();
  wait_copies<0>();
  __syncthreads();
}

// kShared: rows of bf16 pass through shared memory, so that source and cache may be the same. kD:
// head_dim, where loops over it are unrolled, or 0.
template <typename T, bool kShared, int kD>
__global__ __launch_bounds__(kShared ? kManyThreads : kFewThreads,
                             1) void settle_segments(const __grid_constant__ RefineView view,
                                                     const Source source, int64_t first_segment) {
  extern __shared__ __align__(16) std::byte shared[];
  let_next_begin();
  wait_for_earlier();
  const int64_t begin = first_segment + int64_t{blockIdx.x} * view.segment, head = blockIdx.y;
  const int d = kD > 0 ? kD : static_cast<int>(view.head_dim);
  const int n_sinks = begin == 0 ? static_cast<int>(view.sinks) : 0;
  const int64_t first_page = head * view.cache.n_pages + (begin + n_sinks) / kPage;
  const Split s(shared, d, static_cast<int>(view.segment - n_sinks) / kPage);
  float* key_deviations = s.along;                // (n_pages)
  float* value_deviations = s.along + s.n_pages;  // (n_pages)
  float* norms = s.along + 2 * s.n_pages;         // (n_pages) in the end those of values
  // Rows of the segment behind the sinks.
  const auto rows_of = [&](const std::byte* data, int64_t stride) {
    const int64_t row = n_sinks + (source.one_segment ? 0 : begin - source.first);
    return reinterpret_cast<const T*>(data) + head * source.head_stride + row * stride;
  };
  const auto row_at = [&](int place) { return int{s.rows()[place]}; };
  // Page by page; place_of tells the row of `from` at a place.
  const auto write = [&](const auto& from, const auto& place_of, std::byte* cache, std::byte* means,
                         float* deviations) {
    for (int page = warp_id(); page < s.n_pages; page += split_warps()) {
      T* to = reinterpret_cast<T*>(cache) +
              (head * view.cache.capacity + begin + n_sinks + page * kPage) * d;
      T* mean = reinterpret_cast<T*>(means) + (first_page + page) * d;
      const PageSums sums =
          write_page(from, to, mean, d, [&](int row) { return place_of(page * kPage + row); });
      if (lane_id() != 0) continue;
      deviations[page] = sums.deviation;
      norms[page] = sums.norms;
    }
  };
  const auto write_keys = [&](const auto& from, const auto& place_of) {
    write(from, place_of, view.cache.keys, view.cache.mean_keys, key_deviations);
  };
  const auto write_values = [&](const auto& from) {
    write(from, row_at, view.cache.values, view.cache.mean_values, value_deviations);
  };
  if constexpr (kShared) {
    const SharedKeys staged{reinterpret_cast<__nv_bfloat16*>(shared + Split::bytes(d, s.n_pages)),
                            SharedKeys::stride_of(d)};
    load_rows(staged, rows_of(source.keys, source.key_stride), source.key_stride, s.n_rows, d);
    split_pages(s, staged);
    write_keys(staged, [](int place) { return place; });  // they are permuted already
    __syncthreads();
    load_rows(staged, rows_of(source.values, source.value_stride), source.value_stride, s.n_rows,
              d);
    write_values(staged);
  } else {
    const GlobalKeys<T> keys{rows_of(source.keys, source.key_stride), source.key_stride};
    split_pages(s, keys);
    write_keys(keys, row_at);
    write_values(GlobalKeys<T>{rows_of(source.values, source.value_stride), source.value_stride});
  }
  __syncthreads();
  const auto copy_sinks = [&](const T* from, int64_t stride, std::byte* cache) {
    T* to = reinterpret_cast<T*>(cache) + (head * view.cache.capacity + begin) * d;
    for (int i = static_cast<int>(threadIdx.x); i < n_sinks * d; i += split_threads())
      to[i] = from[(i / d - n_sinks) * stride + i % d];
  };
  copy_sinks(rows_of(source.keys, source.key_stride), source.key_stride, view.cache.keys);
  copy_sinks(rows_of(source.values, source.value_stride), source.value_stride, view.cache.values);
  for (int page = static_cast<int>(threadIdx.x); page < s.n_pages; page += split_threads()) {
    float sum = 0;
    for (int i = 0; i < s.n_pages; ++i) sum += norms[i];
    const float mean_norm = sum / static_cast<float>(s.n_rows);
    const float deviation = sqrtf(value_deviations[page] / kPage);
    view.cache.stats[first_page + page] =
        make_float2(key_deviations[page] / static_cast<float>(kPage * d),
                    mean_norm > 0 ? deviation / mean_norm : 0.0f);
  }
}

// The cache's rows of the segment that begins at `begin`, into (n_kv_heads, segment, head_dim).
template <typename T>
__global__ void copy_closing(const __grid_constant__ RefineView view, int64_t begin, T* keys,
                             T* values) {
  const int64_t head = blockIdx.y;
  const int64_t from = (head * view.cache.capacity + begin) * view.head_dim;
  const int64_t n = view.segment * view.head_dim;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    keys[head * n + i] = reinterpret_cast<const T*>(view.cache.keys)[from + i];
    values[head * n + i] = reinterpret_cast<const T*>(view.cache.values)[from + i];
  }
}

int64_t shared_bytes(const RefineView& view, bool staged) {
  const int d = static_cast<int>(view.head_dim), n = static_cast<int>(view.segment);
  return Split::bytes(d, n / kPage) + (staged ? 2 * n * SharedKeys::stride_of(d) : 0);
}

// Whether the rows of a segment fit into shared memory, as operands of tensor cores.
bool fits_shared(const Context& context, const RefineView& view, DType dtype) {
  return dtype == DType::kBF16 && view.head_dim % 16 == 0 &&
         shared_bytes(view, true) <= context.multiprocessor_shared_bytes() - 1024;
}

template <typename T, bool kShared, int kD = 0>
void launch(Context& context, const RefineView& view, const Source& source, int64_t begin,
            int64_t n) {
  const int64_t bytes = shared_bytes(view, kShared);
  check(cudaFuncSetAttribute(settle_segments<T, kShared, kD>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "settle");
  const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>(view.n_kv_heads));
  const bool alone = kShared && 2 * bytes > context.multiprocessor_shared_bytes() - 2048;
  launch_early(context, "settle", settle_segments<T, kShared, kD>,
               {.grid = grid, .threads = alone ? kManyThreads : kFewThreads, .shared_bytes = bytes},
               view, source, begin);
}

// The n segments from `begin` on.
void launch_any(Context& context, const RefineView& view, DType dtype, const Source& source,
                int64_t begin, int64_t n) {
  if (dtype == DType::kF32) return launch<float, false>(context, view, source, begin, n);
  if (!fits_shared(context, view, dtype))
    return launch<__nv_bfloat16, false>(context, view, source, begin, n);
  if (view.head_dim == 64) return launch<__nv_bfloat16, true, 64>(context, view, source, begin, n);
  if (view.head_dim == 128)
    return launch<__nv_bfloat16, true, 128>(context, view, source, begin, n);
  launch<__nv_bfloat16, true>(context, view, source, begin, n);
}

}  // namespace

void settle(Context& context, const RefineView& view, DType dtype, int64_t begin, int64_t end) {
  SLUICE_CHECK(view.segment <= kMostSegment && (end - begin) % view.segment == 0);
  SLUICE_CHECK(begin >= view.recent.first && end <= view.recent.first + view.recent.n);
  if (begin == end) return;
  launch_any(context, view, dtype,
             {view.recent.keys, view.recent.values, view.recent.head_stride, view.recent.key_stride,
              view.recent.value_stride, view.recent.first, false},
             begin, (end - begin) / view.segment);
}

void settle_in_place(Context& context, const RefineView& view, DType dtype, int64_t begin) {
  SLUICE_CHECK(view.segment <= kMostSegment && begin % view.segment == 0);
  const int64_t d = view.head_dim;
  if (fits_shared(context, view, dtype))
    return launch_any(context, view, dtype,
                      {view.cache.keys, view.cache.values, view.cache.capacity * d, d, d, 0, false},
                      begin, 1);
  const int64_t bytes = view.n_kv_heads * view.segment * view.head_dim * element_bytes(dtype);
  auto* keys = static_cast<std::byte*>(context.scratch(2 * round_up(bytes, 256)));
  std::byte* values = keys + round_up(bytes, 256);
  const dim3 grid(1, static_cast<unsigned>(view.n_kv_heads));
  const auto copy = [&]<typename T>(T*) {
    copy_closing<<<grid, 1024, 0, context.stream()>>>(view, begin, reinterpret_cast<T*>(keys),
                                                      reinterpret_cast<T*>(values));
    check_launch("copy of a segment");
  };
  if (dtype == DType::kBF16)
    copy(static_cast<uint16_t*>(nullptr));
  else
    copy(static_cast<uint32_t*>(nullptr));
  launch_any(context, view, dtype, {keys, values, view.segment * d, d, d, 0, true}, begin, 1);
}

}  // namespace sluice::cuda::refine
