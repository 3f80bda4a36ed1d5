// Attention of few queries: the query heads of a key head are the rows of one tile, and the keys
// are split over blocks and, within a tile, over warps.

#include <algorithm>

#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16;
constexpr int kKeys = 16 * kWarps;  // of a tile, 16 to a warp
// Tiles in shared memory; the copies of all but one are in flight.
template <int kD>
constexpr int kStages = kD <= 64 ? 4 : (kD <= 128 ? 3 : 2);
template <int kD>
constexpr int kBytes = kStages<kD> * 2 * 2 * kKeys* kTileStride<kD>;

// What a block leaves of a row: weighted sums, the largest score and the total of the weights.
struct Parts {
  float* sums;     // (n_batch, n_kv_heads, n_tiles, kRows, n_splits, head_dim)
  float* largest;  // (n_batch, n_kv_heads, n_tiles, kRows, n_splits), times log2(e) and the scale
  float* total;    // the same shape
  int n_splits;
  int n_tiles;  // of rows, for each key head
};

// Row r of a key head's queries is token r / group, head kv_head * group + r % group.
struct Row {
  int64_t token, head;
};
__device__ Row row_at(const AttendView& view, int64_t kv_head, int64_t r) {
  const int64_t group = view.n_heads / view.n_kv_heads;
  return {r / group, kv_head * group + r % group};
}

// Row g (half 0) or g + 8 (half 1) of the queries as the left operand; from: where it begins, or
// nullptr.
template <int kD>
__device__ __forceinline__ void load_query_row(uint32_t (&query)[kD / 16][4], int half,
                                               const __nv_bfloat16* from, int head_dim) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k)
#pragma unroll
    for (int k_half = 0; k_half < 2; ++k_half) {
      const int column = k * 16 + k_half * 8 + 2 * t;
      query[k][half + 2 * k_half] = from != nullptr && column < head_dim
                                        ? *reinterpret_cast<const uint32_t*>(from + column)
                                        : 0;
    }
}

// A warp's 16 keys of a tile of keys, behind which its values lie: scores, of which finish(scores)
// hides or shifts some, a step of the softmax, and the weighted sums. factor: scale * log2(e).
template <int kD, typename Finish>
__device__ __forceinline__ void attend_tile(Softmax& softmax, float (&sums)[kD / 8][4],
                                            const uint32_t (&query)[kD / 16][4],
                                            const __nv_bfloat16* tile, float factor,
                                            const Finish& finish) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float scores[2][4] = {}, kept[2];
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) add_scores<kD>(scores, query[k], tile, warp * 16, k * 16);
  finish(scores);
  take_scores(softmax, scores, factor, kept);
  scale_sums(sums, kept);
  add_values<kD>(sums, scores, tile + kKeys * kTileStride<kD>, warp * 16);
}

// A warp's share of the keys of a row, in units of log2.
struct Share {
  float largest, total;
};

__device__ __forceinline__ void leave_share(Share (&shares)[kWarps][kRows], Softmax& softmax,
                                            float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  add_lanes(softmax);
  if (lane % 4 == 0)
    for (int half = 0; half < 2; ++half)
      shares[warp][lane / 4 + 8 * half] = {softmax.largest[half] * factor, softmax.total[half]};
}

// Puts the shares of warps together: weighted sums in shared memory, (kRows, kD).
template <int kD>
__device__ __forceinline__ void add_warps(float* sums, const float (&own)[kD / 8][4],
                                          const Share (&shares)[kWarps][kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  for (int active = 0; active < kWarps; ++active) {
    if (active == warp) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        float largest = -INFINITY;
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shares[w][row].largest);
        const float part =
            largest == -INFINITY ? 0.0f : exp2_fast(shares[warp][row].largest - largest);
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& sum = sums[row * kD + n * 8 + 2 * t + i];
            sum = (active == 0 ? 0.0f : sum) + own[n][2 * half + i] * part;
          }
      }
    }
    __syncthreads();
  }
}

// Writes what the block leaves of the first n_rows rows; part_of(row) is the number of a row's
// part.
template <int kD, typename PartOf>
__device__ __forceinline__ void write_parts(const Parts& parts, const float* sums,
                                            const Share (&shares)[kWarps][kRows], int head_dim,
                                            int n_rows, const PartOf& part_of) {
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * head_dim; i += kThreads) {
    const int row = i / head_dim, column = i % head_dim;
    parts.sums[part_of(row) * head_dim + column] = sums[row * kD + column];
  }
  if (threadIdx.x < n_rows) {
    const int row = static_cast<int>(threadIdx.x);
    float largest = -INFINITY, total = 0;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shares[w][row].largest);
    for (int w = 0; w < kWarps && largest != -INFINITY; ++w)
      total += shares[w][row].total * exp2_fast(shares[w][row].largest - largest);
    parts.largest[part_of(row)] = largest;
    parts.total[part_of(row)] = total;
  }
}

// The query rows and the share of the keys of a block.
struct Block {
  int64_t batch, kv_head, row_tile;
  int64_t first_row, n_rows;  // of the tile; all rows of the key head
  int64_t begin, end;         // keys

  __device__ __forceinline__ Block(const AttendView& view, const Parts& parts)
      : batch(blockIdx.z),
        kv_head(blockIdx.y / parts.n_tiles),
        row_tile(blockIdx.y % parts.n_tiles) {
    const int64_t group = view.n_heads / view.n_kv_heads;
    n_rows = view.n_tokens * group;
    first_row = row_tile * kRows;
    // The keys that any row of the tile sees, and this block's share of them.
    const int64_t n_keys = view.first_position + view.n_tokens;
    const int64_t last_row = first_row + kRows < n_rows ? first_row + kRows - 1 : n_rows - 1;
    const int64_t first_token = first_row / group, last_token = last_row / group;
    const int64_t seen_end = view.causal ? view.first_position + last_token + 1 : n_keys;
    int64_t seen_begin = 0;
    if (view.window > 0 && view.first_position + first_token + 1 > view.window)
      seen_begin = (view.first_position + first_token + 1 - view.window) / kKeys * kKeys;
    const int64_t n_tiles = (seen_end - seen_begin + kKeys - 1) / kKeys;
    begin = seen_begin + n_tiles * blockIdx.x / parts.n_splits * kKeys;
    const int64_t share_end = seen_begin + n_tiles * (blockIdx.x + 1) / parts.n_splits * kKeys;
    end = share_end < seen_end ? share_end : seen_end;
  }
};

// Rows g and g + 8 of the queries as the left operand, and their positions.
template <int kD>
__device__ __forceinline__ void load_queries(uint32_t (&query)[kD / 16][4], int64_t (&positions)[2],
                                             const AttendView& view, const Block& block) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  for (int half = 0; half < 2; ++half) {
    const int64_t r = block.first_row + g + 8 * half;
    const bool exists = r < block.n_rows;
    const Row row = row_at(view, block.kv_head, exists ? r : block.first_row);
    positions[half] = view.first_position + row.token;
    const auto* from = reinterpret_cast<const __nv_bfloat16*>(view.queries) +
                       (block.batch * view.n_tokens + row.token) * view.query_stride +
                       row.head * view.head_dim;
    load_query_row<kD>(query, half, exists ? from : nullptr, static_cast<int>(view.head_dim));
  }
}

// Starts copying tile i of the block's keys and values; nothing, but counted, behind the last.
template <int kD>
__device__ __forceinline__ void start_copy(__nv_bfloat16* shared, const AttendView& view,
                                           const Block& block, int i) {
  constexpr int kTile = kKeys * kTileStride<kD>;
  const int64_t base =
      (block.batch * view.n_kv_heads + block.kv_head) * view.capacity * view.head_dim;
  const auto* keys = reinterpret_cast<const __nv_bfloat16*>(view.keys) + base;
  const auto* values = reinterpret_cast<const __nv_bfloat16*>(view.values) + base;
  const auto head_dim = static_cast<int>(view.head_dim);
  const int64_t first = block.begin + int64_t{i} * kKeys;
  __nv_bfloat16* tile = shared + 2 * (i % kStages<kD>)*kTile;
  if (first < block.end) {
    copy_tile<kD, kKeys, kThreads>(tile, keys, view.head_dim, first, block.end, head_dim);
    copy_tile<kD, kKeys, kThreads>(tile + kTile, values, view.head_dim, first, block.end, head_dim);
  }
  commit_copies();
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    split(AttendView view, FirstPosition position, Parts parts) {
  constexpr int kTile = kKeys * kTileStride<kD>;
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  __shared__ Share shares[kWarps][kRows];
  launch_dependents();
  wait_on_dependency();
  view.first_position = position.get();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Block block(view, parts);
  uint32_t query[kD / 16][4];
  int64_t positions[2];
  load_queries<kD>(query, positions, view, block);

  Softmax softmax;
  float own[kD / 8][4] = {};  // sums
  const float factor = view.scale * kLog2E;
  const auto n_mine = static_cast<int>((block.end - block.begin + kKeys - 1) / kKeys);
  for (int i = 0; i < kStages<kD> - 1; ++i) start_copy<kD>(shared, view, block, i);
  for (int i = 0; i < n_mine; ++i) {
    wait_copies<kStages<kD> - 2>();
    __syncthreads();
    start_copy<kD>(shared, view, block, i + kStages<kD> - 1);
    const int64_t first = block.begin + int64_t{i} * kKeys + warp * 16;
    attend_tile<kD>(softmax, own, query, shared + 2 * (i % kStages<kD>)*kTile, factor,
                    [&](float(&scores)[2][4]) {
                      mask_scores(scores, seen_from(view, first, positions, block.end));
                    });
  }

  leave_share(shares, softmax, factor);
  __syncthreads();                                // the tiles are free too
  auto* sums = reinterpret_cast<float*>(shared);  // (kRows, kD)
  add_warps<kD>(sums, own, shares);
  const int64_t first_part =
      ((block.batch * view.n_kv_heads + block.kv_head) * parts.n_tiles + block.row_tile) * kRows;
  write_parts<kD>(parts, sums, shares, static_cast<int>(view.head_dim), kRows,
                  [&](int row) { return (first_part + row) * parts.n_splits + blockIdx.x; });
}

// One block to a row of a key head's queries, one thread to a column.
__global__ void put_together(AttendView view, Parts parts) {
  launch_dependents();
  wait_on_dependency();
  const int64_t r = blockIdx.x, kv_head = blockIdx.y, batch = blockIdx.z;
  const Row row = row_at(view, kv_head, r);
  const int64_t first =
      ((batch * view.n_kv_heads + kv_head) * parts.n_tiles * kRows + r) * parts.n_splits;
  float largest = -INFINITY, total = 0, sum = 0;
  for (int i = 0; i < parts.n_splits; ++i) largest = fmaxf(largest, parts.largest[first + i]);
  const int64_t column = threadIdx.x;
  if (column >= view.head_dim) return;
  for (int i = 0; i < parts.n_splits; ++i) {
    const float part = exp2_fast(parts.largest[first + i] - largest);
    total += parts.total[first + i] * part;
    sum += parts.sums[(first + i) * view.head_dim + column] * part;
  }
  const float value[1] = {sum / total};
  store<1>(RowsView{view.out, view.out_stride, true}, batch * view.n_tokens + row.token,
           row.head * view.head_dim + column, value);
}

// Blocks that the device holds at one time.
template <int kD>
int64_t resident_blocks(Context& context) {
  static const int per_multiprocessor = [] {
    check(cudaFuncSetAttribute(split<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes<kD>),
          "attention's shared memory");
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, split<kD>, kThreads, kBytes<kD>),
          "attention's occupancy");
    return blocks;
  }();
  return int64_t{per_multiprocessor} * context.multiprocessors();
}

template <int kD>
void launch(Context& context, const AttendView& view) {
  const int64_t n_rows = view.n_tokens * view.group(), n_tiles = ceil_div(n_rows, kRows);
  // As many as there is room for at one time, unless that leaves less than a few tiles to each.
  const int64_t blocks = view.n_batch * view.n_kv_heads * n_tiles;
  const auto splits_of = [&](int64_t n_keys) {
    const int64_t most = ceil_div(n_keys, 4 * kKeys);
    return std::clamp<int64_t>(resident_blocks<kD>(context) / blocks, 1, most);
  };
  // What is recorded must do for every position, and finds its memory there. So its sums may have
  // another order than those of the same step that is not.
  const FirstPosition position = first_position_of(context, view.first_position);
  const int64_t n_splits = splits_of(position.recorded == nullptr ? view.n_keys() : view.capacity);
  const int64_t n_parts = blocks * kRows * n_splits;
  const int64_t most_parts = blocks * kRows * splits_of(view.capacity);
  Parts parts{};
  parts.sums = static_cast<float*>(context.scratch(
      checked_mul(checked_mul(most_parts, view.head_dim + 2), int64_t{sizeof(float)})));
  parts.largest = parts.sums + n_parts * view.head_dim;
  parts.total = parts.largest + n_parts;
  parts.n_splits = static_cast<int>(n_splits);
  parts.n_tiles = static_cast<int>(n_tiles);
  const dim3 grid(static_cast<unsigned>(n_splits), static_cast<unsigned>(view.n_kv_heads * n_tiles),
                  static_cast<unsigned>(view.n_batch));
  launch_programmatic(context, "split", split<kD>,
                      {.grid = grid, .threads = kThreads, .shared_bytes = kBytes<kD>}, view,
                      position, parts);
  const dim3 rows(static_cast<unsigned>(n_rows), static_cast<unsigned>(view.n_kv_heads),
                  static_cast<unsigned>(view.n_batch));
  launch_programmatic(context, "put_together", put_together, rows,
                      static_cast<int>(round_up(view.head_dim, 32)), view, parts);
}

}  // namespace

void attend_split(Context& context, const AttendView& view) {
  if (view.head_dim <= 64) return launch<64>(context, view);
  if (view.head_dim <= 128) return launch<128>(context, view);
  launch<256>(context, view);
}

}  // namespace sluice::impl::cuda
