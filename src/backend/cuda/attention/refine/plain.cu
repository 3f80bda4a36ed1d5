// Refined attention of one query and one head to a warp, in f32 throughout: for parity in f32, and
// for heads that tensor cores cannot take. One kernel decides what
// each tile of queries opens, a second one attends.

#include <algorithm>

#include "backend/cuda/attention/dense/plain.cuh"
#include "backend/cuda/attention/refine/estimate.cuh"
#include "backend/cuda/attention/refine/kernels.h"

namespace sluice::impl::cuda::refine {
namespace {

using namespace dense;

constexpr int kWarps = 4;
constexpr int64_t kMostDecisions = int64_t{64} << 20;  // bytes of scratch at a time

// The queries of some tiles, and what these open.
struct Slice {
  int64_t first_row, n_rows;  // of the pass
  int64_t first_tile;         // its first query's position over view.tile
  int64_t n_pages;            // that any query may see
  uint8_t* opens;             // (n_tiles, n_heads, n_pages): 1 where the tile opens the page
};

// A sum of exponentials, of which the largest is taken out.
struct Softmax {
  float largest = -INFINITY, total = 0;

  __device__ void add(float score) {
    const float now = fmaxf(largest, score);
    if (now == -INFINITY) return;
    total = total * expf(largest - now) + expf(score - now);
    largest = now;
  }
};

// A row of a tensor of keys and of the corresponding tensor of values.
struct Place {
  ConstRowsView keys, values;
  int64_t row;
};

// What a warp knows of its query.
struct Query {
  const RefineView& view;
  bool bf16;
  int64_t row, head, kv_head, t, border, end;  // near keys are those of [border, end)
  HeadKind kind;
  uint8_t* opens;  // (n_pages) of its tile
  float* scaled;   // (head_dim) in shared memory

  __device__ Query(const RefineView& all, const Slice& slice, bool is_bf16, int64_t of_row,
                   int64_t of_head, float* shared)
      : view(all), bf16(is_bf16), row(of_row), head(of_head), scaled(shared) {
    kv_head = head / (view.n_heads / view.n_kv_heads);
    t = view.first_position + row;
    border = view.border(t);
    end = view.causal ? t + 1 : view.first_position + view.n_tokens;
    kind = view.kinds[kv_head];
    opens =
        slice.opens + ((t / view.tile - slice.first_tile) * view.n_heads + head) * slice.n_pages;
    float x[1];
    for (int64_t i = threadIdx.x % 32; i < view.head_dim; i += 32) {
      load<1>(ConstRowsView{view.queries, view.query_stride, bf16}, row, head * view.head_dim + i,
              x);
      scaled[i] = x[0] * view.scale;
    }
    __syncwarp();
  }

  __device__ ConstRowsView rows(const std::byte* data, int64_t head_rows) const {
    const int64_t size = bf16 ? 2 : 4;
    return {data + kv_head * head_rows * view.head_dim * size, view.head_dim, bf16};
  }
  __device__ Place near(int64_t position) const {
    const RecentView& recent = view.recent;
    const int64_t head_bytes = kv_head * recent.head_stride * (bf16 ? 2 : 4);
    return {{recent.keys + head_bytes, recent.key_stride, bf16},
            {recent.values + head_bytes, recent.value_stride, bf16},
            position - recent.first};
  }
  __device__ Place settled(int64_t cache_row) const {
    const CacheView& cache = view.cache;
    return {rows(cache.keys, cache.capacity), rows(cache.values, cache.capacity), cache_row};
  }
  __device__ Place mean(int64_t page) const {
    const CacheView& cache = view.cache;
    return {rows(cache.mean_keys, cache.n_pages), rows(cache.mean_values, cache.n_pages), page};
  }
  // Rows of the cache that are read whatever is opened.
  __device__ int64_t n_exact() const {
    if (kind == HeadKind::kDense) return border;
    return border > 0 ? view.sinks : 0;
  }
  // Pages [first_page, end_page) are read as means or opened.
  __device__ int64_t first_page() const { return view.sinks / kPage; }
  __device__ int64_t end_page() const { return kind == HeadKind::kClusters ? border / kPage : 0; }

  __device__ float score(const Place& place) const {
    float dot = 0, x[1];
    for (int64_t i = 0; i < view.head_dim; ++i) {
      load<1>(place.keys, place.row, i, x);
      dot += scaled[i] * x[0];
    }
    return dot;
  }
};

// RefineEstimate of backend/refine.h, for pages of a query's head.
struct Estimate {
  const Query& query;
  float squares[kSpreadGroups];

  __device__ explicit Estimate(const Query& of) : query(of) {
    const RefineView& view = query.view;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const DeviceGroups groups(view, query.kv_head);
    float mine = 0;
    if (lane < kSpreadGroups)
      for (int i = groups.begins[lane]; i < groups.begins[lane + 1]; ++i) {
        const float x = query.scaled[groups.dims[i]];
        mine += x * x;
      }
    mine = __bfloat162float(__float2bfloat16(mine));
#pragma unroll
    for (int g = 0; g < kSpreadGroups; ++g) squares[g] = __shfl_sync(0xffffffffu, mine, g);
  }
  __device__ float sigma(int64_t page) const {
    const CacheView& cache = query.view.cache;
    float spreads[kSpreadGroups], variance = 0;
    widen_eight(cache.spreads[query.kv_head * cache.n_pages + page], spreads);
#pragma unroll
    for (int g = 0; g < kSpreadGroups; ++g) variance += squares[g] * spreads[g];
    return sqrtf(variance);
  }
  __device__ static float excess(float sigma) { return excess_of(sigma * sigma, sigma); }
  __device__ float log_mass(float score, int64_t page) const {
    return score + kLogPage + excess(sigma(page));
  }
  __device__ float operator()(float score, int64_t page, float log_z) const {
    const CacheView& cache = query.view.cache;
    const float deviation = sigma(page), rho = cache.rhos[query.kv_head * cache.n_pages + page];
    return expf(score + kLogPage + excess(deviation) - log_z) *
           error_of(deviation, excess(deviation), rho);
  }
};

// Marks what the query asks its tile to open. Each page has its lane.
__device__ void mark(const Query& query) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (query.end_page() <= query.first_page()) return;
  const float delta = query.view.deltas[query.kv_head];
  const Estimate estimate(query);
  Softmax z;
  for (int64_t i = lane; i < query.n_exact(); i += 32) z.add(query.score(query.settled(i)));
  for (int64_t i = query.border + lane; i < query.end; i += 32) z.add(query.score(query.near(i)));
  for (int64_t page = query.first_page() + lane; page < query.end_page(); page += 32)
    z.add(estimate.log_mass(query.score(query.mean(page)), page));
  const float largest = warp_max(z.largest);
  const float log_z = largest + logf(warp_sum(z.total * expf(z.largest - largest)));
  for (int64_t page = query.first_page() + lane; page < query.end_page(); page += 32)
    if (estimate(query.score(query.mean(page)), page, log_z) >= delta) query.opens[page] = 1;
}

// Adds n rows to the softmax and the weighted sum of values; place(j) tells where row j is, and
// bias(j) what is added to its score.
template <typename PlaceOf, typename BiasOf>
__device__ void take(const Query& query, int64_t n, const PlaceOf& place, const BiasOf& bias,
                     WarpSoftmax& softmax, float* sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t first = 0; first < n; first += 32) {
    const int64_t mine = first + lane;
    const float score = mine < n ? query.score(place(mine)) + bias(mine) : -INFINITY;
    const float now = softmax.largest_with(score);
    if (now == -INFINITY) continue;
    const auto step = softmax.take(score, now);
    // Lanes without a row have no weight.
    add_values<true>(sum, query.view.head_dim, step, 32, [&](int j, int64_t column) {
      float x[1];
      const Place at = place(first + j);
      load<1>(at.values, at.row, column, x);
      return x[0];
    });
  }
}

__device__ void answer(const Query& query, float* sum) {
  const RefineView& view = query.view;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = lane; i < view.head_dim; i += 32) sum[i] = 0;
  const auto none = [](int64_t) { return 0.0f; };
  WarpSoftmax softmax;
  take(
      query, query.end - query.border, [&](int64_t j) { return query.near(query.border + j); },
      none, softmax, sum);
  take(
      query, query.n_exact(), [&](int64_t j) { return query.settled(j); }, none, softmax, sum);
  const int64_t first = query.first_page(), end = query.end_page();
  // Opened pages have no weight as means.
  take(
      query, end - first, [&](int64_t j) { return query.mean(first + j); },
      [&](int64_t j) { return query.opens[first + j] != 0 ? -INFINITY : kLogPage; }, softmax, sum);
  unsigned long long n_opened = query.kind == HeadKind::kDense && query.border > view.sinks
                                    ? static_cast<unsigned long long>(query.border - view.sinks)
                                    : 0;
  for (int64_t page = first; page < end; ++page) {
    if (query.opens[page] == 0) continue;
    take(
        query, kPage, [&](int64_t j) { return query.settled(page * kPage + j); }, none, softmax,
        sum);
    n_opened += kPage;
  }
  if (lane == 0 && n_opened > 0)
    atomicAdd(view.opened + query.t / view.segment * view.n_heads + query.head, n_opened);
  float x[1];
  for (int64_t i = lane; i < view.head_dim; i += 32) {
    x[0] = sum[i] / softmax.total;
    store<1>(RowsView{view.out, view.out_stride, query.bf16}, query.row,
             query.head * view.head_dim + i, x);
  }
}

// Shared memory: kWarps queries, and as many sums of values where they are answered, head_dim each.
template <bool kDecides>
__global__ void plain(const __grid_constant__ RefineView view, const Slice slice, bool bf16) {
  extern __shared__ float shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t head = int64_t{blockIdx.y} * kWarps + warp;
  if (head >= view.n_heads) return;
  const Query query(view, slice, bf16, slice.first_row + blockIdx.x, head,
                    shared + warp * view.head_dim);
  if constexpr (kDecides)
    mark(query);
  else
    answer(query, shared + (kWarps + warp) * view.head_dim);
}

}  // namespace

void attend_plain(Context& context, const RefineView& view, DType dtype) {
  const int64_t first = view.first_position, end = first + view.n_tokens;
  const int64_t n_pages = view.last_border() / kPage;
  const int64_t tile_bytes = std::max<int64_t>(view.n_heads * n_pages, 1);
  const int64_t most_tiles = std::max<int64_t>(kMostDecisions / tile_bytes, 1);
  const int64_t n_tiles = std::min(most_tiles, (end - 1) / view.tile - first / view.tile + 1);
  const auto bytes = static_cast<size_t>(2 * kWarps * view.head_dim) * sizeof(float);
  SLUICE_CHECK(bytes <= 48 * 1024);
  auto* opens = static_cast<uint8_t*>(context.scratch(n_tiles * tile_bytes));
  for (int64_t t = first; t < end;) {
    const int64_t next = std::min((t / view.tile + n_tiles) * view.tile, end);
    const Slice slice{t - first, next - t, t / view.tile, n_pages, opens};
    check(cudaMemsetAsync(opens, 0, static_cast<size_t>(n_tiles * tile_bytes), context.stream()),
          "clearing decisions");
    const dim3 grid(static_cast<unsigned>(slice.n_rows),
                    static_cast<unsigned>(ceil_div(view.n_heads, kWarps)));
    const bool bf16 = dtype == DType::kBF16;
    if (n_pages > 0) plain<true><<<grid, 32 * kWarps, bytes, context.stream()>>>(view, slice, bf16);
    plain<false><<<grid, 32 * kWarps, bytes, context.stream()>>>(view, slice, bf16);
    check_launch("refine plain");
    t = next;
  }
}

}  // namespace sluice::impl::cuda::refine
