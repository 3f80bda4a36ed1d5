// Settles segments: pages of similar keys, permuted rows, means and statistics. One thread block
// per segment and key/value head.

#include "backend/cuda/attention/refine/pages.cuh"
#include "backend/cuda/attention/refine/split.cuh"

namespace sluice::impl::cuda::refine {
namespace {

// The segments to settle: n_tokens each, the first at `begin`. Their tokens by position, strides in
// elements.
struct Segments {
  const std::byte* keys;    // (n_kv_heads, rows, head_dim)
  const std::byte* values;  // (n_kv_heads, rows, head_dim)
  int64_t head_stride, key_stride, value_stride;
  int64_t first;  // position of a head's first row
  int64_t begin, n_tokens;
  bool keeps_places;  // writes cache.places
  // (n_kv_heads, pages of the segments from position 0 on, head_dim): squared deviations of keys,
  // written in place of spreads where the dimensions have no groups yet. Null: they have.
  float* deviations;
};

// kV: numbers that a load takes, 8 of aligned bf16 or 1.
template <typename T, int kV>
__global__ __launch_bounds__(kSplitThreads,
                             4) void settle_segments(const __grid_constant__ RefineView view,
                                                     const __grid_constant__ Segments segments) {
  extern __shared__ __align__(16) std::byte shared[];
  launch_dependents();
  wait_on_dependency();
  const int64_t begin = segments.begin + int64_t{blockIdx.x} * segments.n_tokens, head = blockIdx.y;
  const int d = static_cast<int>(view.head_dim);
  const int n_sinks = begin == 0 ? static_cast<int>(view.sinks) : 0;
  const int64_t first_page = head * view.cache.n_pages + (begin + n_sinks) / kPage;
  const Split s(shared, static_cast<int>(segments.n_tokens - n_sinks) / kPage);
  // Rows of the segment behind the sinks.
  const auto rows_of = [&](const std::byte* data, int64_t stride) {
    const int64_t row = n_sinks + begin - segments.first;
    return SourceRows<T>{
        reinterpret_cast<const T*>(data) + head * segments.head_stride + row * stride, stride};
  };
  const SourceRows<T> keys = rows_of(segments.keys, segments.key_stride);
  const SourceRows<T> values = rows_of(segments.values, segments.value_stride);
  load_keys<kV>(s, keys.data, keys.stride, d);
  split_pages(s);
  // The split's scratch is free.
  float* value_deviations = s.scratch;   // (n_pages)
  float* norms = s.scratch + s.n_pages;  // (n_pages) of values
  float* columns = s.scratch + 2 * kMostSegment / kPage + warp_id() * kMostDims;  // (head_dim)
  static_assert(2 * kMostSegment / kPage + kSplitWarps * kMostDims <= Split::kScratch);
  const bool grouped = segments.deviations == nullptr;
  const auto write = [&]<bool kNorms>(std::bool_constant<kNorms>, const SourceRows<T>& from,
                                      int page, std::byte* cache, std::byte* means) {
    const uint16_t* rows = s.rows + page * kPage;
    T* to = reinterpret_cast<T*>(cache) +
            (head * view.cache.capacity + begin + n_sinks + page * kPage) * d;
    T* mean = reinterpret_cast<T*>(means) + (first_page + page) * d;
    if constexpr (kV == 8)
      return write_page<kNorms>(from, rows, to, mean, d, columns);
    else
      return write_page_plain(from, rows, to, mean, d, columns);
  };
  for (int page = warp_id(); page < s.n_pages; page += kSplitWarps) {
    write(std::false_type{}, keys, page, view.cache.keys, view.cache.mean_keys);
    uint4 spreads{};
    if (grouped) {
      spreads = spreads_of(columns, DeviceGroups(view, head));
    } else {
      __syncwarp();  // all columns are there
      const int64_t n_pages = int64_t{gridDim.x} * segments.n_tokens / kPage;
      float* to =
          segments.deviations + (head * n_pages + (begin + n_sinks) / kPage + page) * int64_t{d};
      for (int i = lane_id(); i < d; i += 32) to[i] = columns[i];
      __syncwarp();
    }
    const PageSums of_values =
        write(std::true_type{}, values, page, view.cache.values, view.cache.mean_values);
    if (lane_id() != 0) continue;
    if (grouped) view.cache.spreads[first_page + page] = spreads;
    value_deviations[page] = of_values.deviation;
    norms[page] = of_values.norms;
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const auto copy_sinks = [&](const SourceRows<T>& from, std::byte* cache) {
    T* to = reinterpret_cast<T*>(cache) + (head * view.cache.capacity + begin) * d;
    for (int i = thread; i < n_sinks * d; i += kSplitThreads)
      to[i] = from.data[(i / d - n_sinks) * from.stride + i % d];
  };
  copy_sinks(keys, view.cache.keys);
  copy_sinks(values, view.cache.values);
  for (int page = thread; page < s.n_pages; page += kSplitThreads) {
    float sum = 0;
    for (int i = 0; i < s.n_pages; ++i) sum += norms[i];
    const float mean_norm = sum / static_cast<float>(s.n_rows);
    const float deviation = sqrtf(value_deviations[page] / kPage);
    view.cache.rhos[first_page + page] = mean_norm > 0 ? deviation / mean_norm : 0.0f;
  }
  if (!segments.keeps_places) return;
  const auto offset = static_cast<int>(begin % view.segment);
  uint16_t* places = view.cache.places + head * view.segment + offset;
  for (int i = thread; i < n_sinks; i += kSplitThreads)
    places[i] = static_cast<uint16_t>(offset + i);
  for (int i = thread; i < s.n_rows; i += kSplitThreads)
    places[n_sinks + s.rows[i]] = static_cast<uint16_t>(offset + n_sinks + i);
}

// group_dims() of backend/refine.h, a key/value head to a block, by the deviations of the first
// segment's pages: those from first_page to end_page of n_pages to a head. In double, as on other
// backends, so that the groups are the same.
__global__ void __launch_bounds__(kMostDims)
    group_dims(const __grid_constant__ RefineView view, const float* deviations, int64_t n_pages) {
  __shared__ double variances[kMostDims], inverse[kMostDims + 1];
  __shared__ double sums[kMostDims + 1], squares[kMostDims + 1];  // of the first logarithms
  __shared__ double cost[2][kMostDims + 1];
  __shared__ uint16_t begins[kSpreadGroups][kMostDims + 1];
  const auto n_dims = static_cast<int>(view.head_dim), d = static_cast<int>(threadIdx.x);
  const int64_t head = blockIdx.x;
  const auto first_page = static_cast<int>(view.sinks) / kPage;
  const auto end_page = static_cast<int>(view.segment) / kPage;
  uint16_t* to = view.cache.dims + head * (n_dims + kSpreadGroups + 1);
  if (d < n_dims) {
    double sum = 0;
#pragma unroll 8
    for (int page = first_page; page < end_page; ++page)
      sum += static_cast<double>(deviations[(head * n_pages + page) * n_dims + d]);
    variances[d] = isnan(sum) ? 0 : sum;
  }
  inverse[d + 1] = 1.0 / (d + 1);
  __syncthreads();
  if (d < n_dims) {
    int rank = 0;
    double largest = 0;
    for (int i = 0; i < n_dims; ++i) {
      rank += variances[i] < variances[d] || (variances[i] == variances[d] && i < d);
      largest = fmax(largest, variances[i]);
    }
    to[rank] = static_cast<uint16_t>(d);
    const double least = largest * kLeastVariance;
    sums[rank + 1] = least > 0 ? log(fmax(variances[d], least)) : 0;
  }
  __syncthreads();
  if (d == 0) {
    sums[0] = squares[0] = 0;
    for (int i = 1; i <= n_dims; ++i) {
      squares[i] = squares[i - 1] + sums[i] * sums[i];
      sums[i] += sums[i - 1];
    }
  }
  const int end = d + 1, n_groups = min(n_dims, kSpreadGroups);
  cost[0][end] = INFINITY;
  if (d == 0) cost[0][0] = 0;
  __syncthreads();
  for (int g = 0; g < n_groups; ++g) {
    const double* before = cost[g % 2];
    double least = INFINITY;
#pragma unroll 4
    for (int begin = g; begin < end && end <= n_dims; ++begin) {
      const double sum = sums[end] - sums[begin];
      const double with =
          before[begin] + squares[end] - squares[begin] - sum * sum * inverse[end - begin];
      if (with >= least) continue;
      least = with;
      begins[g][end] = static_cast<uint16_t>(begin);
    }
    cost[(g + 1) % 2][end] = least;
    if (d == 0) cost[(g + 1) % 2][0] = INFINITY;
    __syncthreads();
  }
  if (d > 0) return;
  uint16_t* group_begins = to + n_dims;
  for (int g = n_groups; g <= kSpreadGroups; ++g) group_begins[g] = static_cast<uint16_t>(n_dims);
  int last = n_dims;
  for (int g = n_groups; g-- > 0;) group_begins[g] = static_cast<uint16_t>(last = begins[g][last]);
}

// The spreads of pages from the first clustered one on, a warp to a page.
__global__ void spread_pages(const __grid_constant__ RefineView view, const float* deviations,
                             int64_t n_pages) {
  const int64_t head = blockIdx.y, first = view.sinks / kPage;
  const int64_t page = first + int64_t{blockIdx.x} * (blockDim.x / 32) + warp_id();
  if (page >= n_pages) return;
  const uint4 spreads =
      spreads_of(deviations + (head * n_pages + page) * view.head_dim, DeviceGroups(view, head));
  if (lane_id() == 0) view.cache.spreads[head * view.cache.n_pages + page] = spreads;
}

// The cache's rows of positions [begin, begin + n), into (n_kv_heads, n, head_dim).
template <typename T>
__global__ void copy_closing(const __grid_constant__ RefineView view, int64_t begin, int64_t n,
                             T* keys, T* values) {
  const int64_t head = blockIdx.y, row = blockIdx.x, d = view.head_dim;
  const int64_t from = view.cache.row(head, begin + row, view.segment) * d;
  const int64_t to = (head * n + row) * d;
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    keys[to + i] = reinterpret_cast<const T*>(view.cache.keys)[from + i];
    values[to + i] = reinterpret_cast<const T*>(view.cache.values)[from + i];
  }
}

template <typename T, int kV>
void launch(Context& context, const RefineView& view, const Segments& segments, int64_t n) {
  const int bytes = Split::bytes(static_cast<int>(segments.n_tokens));
  check(cudaFuncSetAttribute(settle_segments<T, kV>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             bytes),
        "settle");
  const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>(view.n_kv_heads));
  launch_programmatic(context, "settle", settle_segments<T, kV>,
                      {.grid = grid, .threads = kSplitThreads, .shared_bytes = bytes}, view,
                      segments);
}

void launch_any(Context& context, const RefineView& view, DType dtype, const Segments& segments,
                int64_t n) {
  SLUICE_CHECK(segments.n_tokens <= kMostSegment && view.head_dim <= kMostDims);
  const auto aligned = [](const std::byte* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
  };
  if (dtype == DType::kF32) return launch<float, 1>(context, view, segments, n);
  if (view.head_dim % 8 == 0 && segments.head_stride % 8 == 0 &&
      aligned(segments.keys, segments.key_stride) &&
      aligned(segments.values, segments.value_stride))
    return launch<__nv_bfloat16, 8>(context, view, segments, n);
  launch<__nv_bfloat16, 1>(context, view, segments, n);
}

// n parts of a sequence. Those of its first pass group its dimensions: their deviations wait in
// memory for the groups.
void settle_parts(const std::shared_ptr<Context>& context, const RefineView& view, DType dtype,
                  Segments segments, int64_t n) {
  if (segments.begin > 0) return launch_any(*context, view, dtype, segments, n);
  SLUICE_CHECK(segments.n_tokens == view.segment);
  const int64_t n_pages = n * view.segment / kPage;
  const DeviceArray<float> deviations(context, view.n_kv_heads * n_pages * view.head_dim);
  segments.deviations = deviations.data();
  launch_any(*context, view, dtype, segments, n);
  group_dims<<<static_cast<unsigned>(view.n_kv_heads), kMostDims, 0, context->stream()>>>(
      view, deviations.data(), n_pages);
  constexpr int kWarps = 8;
  const dim3 grid(static_cast<unsigned>(ceil_div(n_pages, kWarps)),
                  static_cast<unsigned>(view.n_kv_heads));
  spread_pages<<<grid, 32 * kWarps, 0, context->stream()>>>(view, deviations.data(), n_pages);
  check_launch("groups of dimensions");
}

}  // namespace

void settle(const std::shared_ptr<Context>& context, const RefineView& view, DType dtype,
            int64_t begin, int64_t end) {
  SLUICE_CHECK((end - begin) % view.segment == 0);
  SLUICE_CHECK(begin >= view.recent.first && end <= view.recent.first + view.recent.n);
  if (begin == end) return;
  settle_parts(
      context, view, dtype,
      {view.recent.keys, view.recent.values, view.recent.head_stride, view.recent.key_stride,
       view.recent.value_stride, view.recent.first, begin, view.segment, false, nullptr},
      (end - begin) / view.segment);
}

void settle_in_place(const std::shared_ptr<Context>& context, const RefineView& view, DType dtype,
                     int64_t begin, int64_t end, int64_t n_tokens) {
  SLUICE_CHECK(begin % n_tokens == 0 && (end - begin) % n_tokens == 0);
  const int64_t n = end - begin, d = view.head_dim;
  if (n == 0) return;
  const int64_t bytes = round_up(view.n_kv_heads * n * d * element_bytes(dtype), 256);
  auto* keys = static_cast<std::byte*>(context->scratch(2 * bytes));
  std::byte* values = keys + bytes;
  const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>(view.n_kv_heads));
  const auto copy = [&]<typename T>(T*) {
    copy_closing<<<grid, 128, 0, context->stream()>>>(view, begin, n, reinterpret_cast<T*>(keys),
                                                      reinterpret_cast<T*>(values));
    check_launch("copy of a segment");
  };
  if (dtype == DType::kBF16)
    copy(static_cast<uint16_t*>(nullptr));
  else
    copy(static_cast<uint32_t*>(nullptr));
  settle_parts(
      context, view, dtype,
      {keys, values, n * d, d, d, begin, begin, n_tokens, n_tokens < view.segment, nullptr},
      n / n_tokens);
}

}  // namespace sluice::impl::cuda::refine
