// Attention among representatives on the matrix units, as attend_tiles.cu has it for all tokens,
// with the multiplicities of keys.

#include "backend/cuda/attend_tile.cuh"
#include "backend/cuda/reps_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16 * kWarps;
static_assert(kRows == kRepsTileRows);

// Members behind a tile's first query that are kept at hand; where there are more, memory has them.
constexpr int kMembers = 1024;

template <int kD>
struct Sizes {
  static constexpr int kKeys = kD <= 128 ? 64 : 32;
  static constexpr bool kQueriesStay = kD > 128;         // in shared memory, for want of registers
  static constexpr int kTile = kKeys * kTileStride<kD>;  // numbers, of keys or of values
  static constexpr int kQueryTile = kRows * kTileStride<kD>;
  static constexpr int kBuffers = 4 * kTile;  // two of each
  static constexpr int kNumbers =
      kQueriesStay ? kBuffers + kQueryTile : (kBuffers > kQueryTile ? kBuffers : kQueryTile);
  // Members behind the first query, (kRows, kKeys); counts at it and their logs, (kKeys).
  static constexpr int kBytes =
      2 * kNumbers + ((kRows + 2) * kKeys + kMembers) * static_cast<int>(sizeof(int));
};

// What a split leaves of a row: weighted sums, the largest score (times scale and log2(e)) and the
// total of the weights. (n_tiles, n_kv_heads, kRows, n_splits), and head_dim for the sums.
struct Parts {
  float* sums;
  float* largest;
  float* total;
};

// Row r of a tile is query r / group, head kv_head * group + r % group.
template <int kD>
__device__ void copy_queries(__nv_bfloat16* to, const RepsView& view, const RepsTile& tile,
                             int64_t kv_head, int64_t group) {
  constexpr int kChunks = kD / 8;
  const auto* queries = reinterpret_cast<const __nv_bfloat16*>(view.queries);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool exists = row < tile.n * group && column < view.head_dim;
    const int64_t at = (tile.row + row / group) * view.query_stride +
                       (kv_head * group + row % group) * view.head_dim + column;
    copy_async(to + row * kTileStride<kD> + column, queries + (exists ? at : 0), exists);
  }
}

// The clusters of tokens behind a tile's first query, up to its last.
struct Members {
  const int32_t* clusters;
  int n;
};
__device__ Members take_members(const RepsView& view, const RepsTile& tile, int32_t* at_hand) {
  const auto n = static_cast<int>(tile.last_end - tile.first_end);
  const int32_t* clusters = view.cluster + tile.first_end;
  if (n > kMembers) return {clusters, n};
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) at_hand[i] = clusters[i];
  __syncthreads();
  return {at_hand, n};
}

// Counts of keys [first, first + kKeys): at the tile's first query, and per query, how many members
// came since. Returns whether any did. All threads; the caller waits before and after.
template <int kKeys>
__device__ bool take_counts(const RepsView& view, const RepsTile& tile, int64_t tile_index,
                            const Members& members, int64_t first, int64_t n_keys, int* counts,
                            float* logs, int* since) {
  if (threadIdx.x < kKeys) {
    const int64_t key = first + threadIdx.x;
    const int count = key < n_keys ? view.counts[tile_index * view.count_stride + key] : 1;
    counts[threadIdx.x] = count;
    logs[threadIdx.x] = log2f(static_cast<float>(count));
  }
  bool any = false;
  const auto place = [&](int i) { return static_cast<int64_t>(members.clusters[i]) - first; };
  const auto is_here = [&](int i) { return place(i) >= 0 && place(i) < kKeys; };
  for (int i = static_cast<int>(threadIdx.x); i < members.n; i += kThreads) any |= is_here(i);
  if (__syncthreads_or(any ? 1 : 0) == 0) return false;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kKeys; i += kThreads) since[i] = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < members.n; i += kThreads) {
    if (!is_here(i)) continue;
    // Queries that end behind the token; they are in order.
    int64_t query = 0;
    for (int64_t step = kRows; step > 0; step /= 2)
      if (query + step <= tile.n && view.ends[tile.row + query + step - 1] <= tile.first_end + i)
        query += step;
    for (; query < tile.n; ++query) atomicAdd(since + query * kKeys + place(i), 1);
  }
  __syncthreads();
  return true;
}

template <int kD>
__device__ void store_rows(const RepsView& view, const Parts& parts, const float (&sums)[kD / 8][4],
                           const Softmax& softmax, const RepsTile& tile, int64_t tile_index,
                           int64_t kv_head, int split, float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t group = view.n_heads / view.n_kv_heads;
  auto* out = reinterpret_cast<__nv_bfloat16*>(view.out);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = warp * 16 + g + 8 * half;
    if (r >= tile.n * group) continue;
    if (view.n_splits == 1) {
      const float inverse = 1 / softmax.total[half];
      __nv_bfloat16* row = out + (tile.row + r / group) * view.out_stride +
                           (kv_head * group + r % group) * view.head_dim;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
        if (n * 8 < view.head_dim)
          *reinterpret_cast<uint32_t*>(row + n * 8 + 2 * t) =
              narrowed(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
      continue;
    }
    const int64_t at =
        ((tile_index * view.n_kv_heads + kv_head) * kRows + r) * view.n_splits + split;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
      if (n * 8 < view.head_dim)
        for (int i = 0; i < 2; ++i)
          parts.sums[at * view.head_dim + n * 8 + 2 * t + i] = sums[n][2 * half + i];
    if (t == 0) {
      parts.largest[at] = softmax.largest[half] * factor;
      parts.total[at] = softmax.total[half];
    }
  }
}

// What is known of the keys of a tile.
struct KeyCounts {
  const int* counts;  // at the tile's first query
  const float* logs;  // to base 2
  const int* since;   // per query, or nullptr where none grew
};

// Scores in units of log2: scaled, with the log of the count, -inf where a query does not see.
// last: of the tile's keys that the queries of rows g and g + 8 see.
template <int kKeys, int kN>
__device__ void finish_scores(float (&scores)[kN][4], float factor, const int (&last)[2],
                              const int (&rows)[2], bool multiplicity, const KeyCounts& keys) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = n * 8 + 2 * t + i % 2;
      float score = scores[n][i] * factor;
      if (multiplicity) {
        const int more = keys.since == nullptr ? 0 : keys.since[rows[i / 2] * kKeys + key];
        score += more == 0 ? keys.logs[key] : log2f(static_cast<float>(keys.counts[key] + more));
      }
      scores[n][i] = key <= last[i / 2] ? score : -INFINITY;
    }
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    reps_tiles(const __grid_constant__ RepsView view, Parts parts) {
  using S = Sizes<kD>;
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  auto* counts = reinterpret_cast<int*>(shared + S::kNumbers);
  auto* logs = reinterpret_cast<float*>(counts + S::kKeys);
  int* since = counts + 2 * S::kKeys;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto head_dim = static_cast<int>(view.head_dim);
  const int split = static_cast<int>(blockIdx.x % view.n_splits);
  // Late queries see most keys: they go first, so that the last blocks are short.
  const int64_t tile_index = view.n_tiles - 1 - blockIdx.x / view.n_splits;
  const int64_t kv_head = blockIdx.y, group = view.n_heads / view.n_kv_heads;
  const RepsTile tile = view.tiles[tile_index];
  const int64_t base = kv_head * view.capacity * view.head_dim;
  const auto* keys = reinterpret_cast<const __nv_bfloat16*>(view.keys) + base;
  const auto* values = reinterpret_cast<const __nv_bfloat16*>(view.values) + base;
  const int64_t n_keys = view.first_row + view.n_rows;
  const int64_t seen_end = view.causal ? view.first_row + tile.row + tile.n : n_keys;
  const int64_t all_tiles = (seen_end + S::kKeys - 1) / S::kKeys;
  const int64_t begin = all_tiles * split / view.n_splits;
  const int64_t end = all_tiles * (split + 1) / view.n_splits;

  __nv_bfloat16* query_tile = S::kQueriesStay ? shared + S::kBuffers : shared;
  copy_queries<kD>(query_tile, view, tile, kv_head, group);
  commit_copies();
  uint32_t query[S::kQueriesStay ? 1 : kD / 16][4];
  if constexpr (!S::kQueriesStay) {
    wait_copies<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) load_query<kD>(query[k], query_tile, k * 16);
    __syncthreads();
  }
  const auto start_copy = [&](int64_t j, int buffer) {
    __nv_bfloat16* tile_keys = shared + 2 * buffer * S::kTile;
    copy_tile<kD, S::kKeys, kThreads>(tile_keys, keys, head_dim, j * S::kKeys, seen_end, head_dim);
    copy_tile<kD, S::kKeys, kThreads>(tile_keys + S::kTile, values, head_dim, j * S::kKeys,
                                      seen_end, head_dim);
    commit_copies();
  };

  const Members members = take_members(view, tile, since + kRows * S::kKeys);
  Softmax softmax;
  float sums[kD / 8][4] = {}, kept[2];
  const int64_t row = warp * 16 + lane / 4;
  const int64_t queries[2] = {tile.row + row / group, tile.row + (row + 8) / group};
  const int rows[2] = {static_cast<int>(row / group), static_cast<int>((row + 8) / group)};
  if (begin < end) start_copy(begin, 0);
  int buffer = 0;
  for (int64_t j = begin; j < end; ++j, buffer ^= 1) {
    wait_copies<0>();
    __syncthreads();
    if (j + 1 < end) start_copy(j + 1, buffer ^ 1);
    const bool grown =
        view.multiplicity && take_counts<S::kKeys>(view, tile, tile_index, members, j * S::kKeys,
                                                   n_keys, counts, logs, since);
    const __nv_bfloat16* tile_keys = shared + 2 * buffer * S::kTile;
    float scores[S::kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      if constexpr (S::kQueriesStay) {
        uint32_t again[4];
        load_query<kD>(again, query_tile, k * 16);
        add_scores<kD>(scores, again, tile_keys, 0, k * 16);
      } else {
        add_scores<kD>(scores, query[k], tile_keys, 0, k * 16);
      }
    }
    const int64_t first_key = j * S::kKeys;
    const auto last_of = [&](int64_t query) {
      const int64_t n = view.causal ? min(view.first_row + query + 1, seen_end) : seen_end;
      return static_cast<int>(min(n - 1 - first_key, int64_t{S::kKeys}));
    };
    const int last[2] = {last_of(queries[0]), last_of(queries[1])};
    finish_scores<S::kKeys>(scores, view.scale * kLog2E, last, rows, view.multiplicity,
                            {counts, logs, grown ? since : nullptr});
    take_scores(softmax, scores, 1.0f, kept);
    scale_sums(sums, kept);
    add_values<kD>(sums, scores, tile_keys + S::kTile, 0);
  }
  add_lanes(softmax);
  store_rows<kD>(view, parts, sums, softmax, tile, tile_index, kv_head, split, 1.0f);
}

// One block to a row of a tile, one thread to a column.
__global__ void put_reps_together(const __grid_constant__ RepsView view, Parts parts) {
  const int64_t tile_index = blockIdx.x / kRows, r = blockIdx.x % kRows, kv_head = blockIdx.y;
  const RepsTile tile = view.tiles[tile_index];
  const int64_t group = view.n_heads / view.n_kv_heads, column = threadIdx.x;
  if (r >= tile.n * group || column >= view.head_dim) return;
  const int64_t first = ((tile_index * view.n_kv_heads + kv_head) * kRows + r) * view.n_splits;
  float largest = -INFINITY, total = 0, sum = 0;
  for (int64_t i = 0; i < view.n_splits; ++i) largest = fmaxf(largest, parts.largest[first + i]);
  for (int64_t i = 0; i < view.n_splits; ++i) {
    const float part = exp2_fast(parts.largest[first + i] - largest);
    total += parts.total[first + i] * part;
    sum += parts.sums[(first + i) * view.head_dim + column] * part;
  }
  const float value[1] = {sum / total};
  store<1>(RowsView{view.out, view.out_stride, true}, tile.row + r / group,
           (kv_head * group + r % group) * view.head_dim + column, value);
}

template <int kD>
void launch(Context& context, const RepsView& view, const Parts& parts) {
  constexpr int kBytes = Sizes<kD>::kBytes;
  check(cudaFuncSetAttribute(reps_tiles<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  const dim3 grid(static_cast<unsigned>(view.n_tiles * view.n_splits),
                  static_cast<unsigned>(view.n_kv_heads));
  reps_tiles<kD><<<grid, kThreads, kBytes, context.stream()>>>(view, parts);
  check_launch("reps_tiles");
}

}  // namespace

void attend_reps_tiles(const std::shared_ptr<Context>& context, const RepsView& view) {
  Parts parts{};
  DeviceArray<float> memory;
  if (view.n_splits > 1) {
    const int64_t n = view.n_tiles * view.n_kv_heads * kRows * view.n_splits;
    memory = DeviceArray<float>(context, n * (view.head_dim + 2));
    parts.sums = memory.data();
    parts.largest = parts.sums + n * view.head_dim;
    parts.total = parts.largest + n;
  }
  if (view.head_dim <= 64)
    launch<64>(*context, view, parts);
  else if (view.head_dim <= 96)
    launch<96>(*context, view, parts);
  else if (view.head_dim <= 128)
    launch<128>(*context, view, parts);
  else
    launch<256>(*context, view, parts);
  if (view.n_splits == 1) return;
  const dim3 grid(static_cast<unsigned>(view.n_tiles * kRows),
                  static_cast<unsigned>(view.n_kv_heads));
  put_reps_together<<<grid, static_cast<unsigned>(round_up(view.head_dim, 32)), 0,
                      context->stream()>>>(view, parts);
  check_launch("put_reps_together");
}

}  // namespace sluice::cuda
