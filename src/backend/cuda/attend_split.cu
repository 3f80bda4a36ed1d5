// Attention of few queries: the query heads of a key head are the rows of one tile, and the keys
// are split over blocks and, within a tile, over warps.

#include <algorithm>

#include "backend/cuda/attend_tile.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16;
constexpr int kKeys = 16 * kWarps;  // of a tile, 16 to a warp

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

template <int kD>
__global__ void __launch_bounds__(kThreads, 1) split(AttendView view, Parts parts) {
  constexpr int kTile = kKeys * kTileStride<kD>;
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  __shared__ float largests[kWarps][kRows], totals[kWarps][kRows];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const auto head_dim = static_cast<int>(view.head_dim);
  const int64_t kv_head = blockIdx.y / parts.n_tiles, tile_of_rows = blockIdx.y % parts.n_tiles;
  const int64_t batch = blockIdx.z, group = view.n_heads / view.n_kv_heads;
  const int64_t n_rows = view.n_tokens * group, r0 = tile_of_rows * kRows;
  const int64_t base = (batch * view.n_kv_heads + kv_head) * view.capacity * view.head_dim;
  const auto* keys = reinterpret_cast<const __nv_bfloat16*>(view.keys) + base;
  const auto* values = reinterpret_cast<const __nv_bfloat16*>(view.values) + base;

  uint32_t query[kD / 16][4];
  int64_t positions[2];
  for (int half = 0; half < 2; ++half) {
    const int64_t r = r0 + g + 8 * half;
    const bool exists = r < n_rows;
    const Row row = row_at(view, kv_head, exists ? r : r0);
    positions[half] = view.first_position + row.token;
    const auto* from = reinterpret_cast<const __nv_bfloat16*>(view.queries) +
                       (batch * view.n_tokens + row.token) * view.query_stride +
                       row.head * view.head_dim;
#pragma unroll
    for (int k = 0; k < kD / 16; ++k)
#pragma unroll
      for (int beside = 0; beside < 2; ++beside) {
        const int column = k * 16 + beside * 8 + 2 * t;
        query[k][half + 2 * beside] =
            exists && column < head_dim ? *reinterpret_cast<const uint32_t*>(from + column) : 0;
      }
  }

  // The keys that any row of the tile sees, and this block's share of them.
  const int64_t n_keys = view.first_position + view.n_tokens;
  const int64_t r_last = r0 + kRows < n_rows ? r0 + kRows - 1 : n_rows - 1;
  const int64_t first_token = r0 / group, last_token = r_last / group;
  const int64_t seen_end = view.causal ? view.first_position + last_token + 1 : n_keys;
  int64_t seen_begin = 0;
  if (view.window > 0 && view.first_position + first_token + 1 > view.window)
    seen_begin = (view.first_position + first_token + 1 - view.window) / kKeys * kKeys;
  const int64_t n_tiles = (seen_end - seen_begin + kKeys - 1) / kKeys;
  const int64_t begin = seen_begin + n_tiles * blockIdx.x / parts.n_splits * kKeys;
  const int64_t share_end = seen_begin + n_tiles * (blockIdx.x + 1) / parts.n_splits * kKeys;
  const int64_t end = share_end < seen_end ? share_end : seen_end;

  const auto start_copy = [&](int64_t first, int buffer) {
    __nv_bfloat16* tile = shared + 2 * buffer * kTile;
    copy_tile<kD, kKeys, kThreads>(tile, keys, view.head_dim, first, end, head_dim);
    copy_tile<kD, kKeys, kThreads>(tile + kTile, values, view.head_dim, first, end, head_dim);
    commit_copies();
  };
  QueryState<kD> state;
  const float factor = view.scale * kLog2E;
  if (begin < end) start_copy(begin, 0);
  int buffer = 0;
  for (int64_t j = begin; j < end; j += kKeys, buffer ^= 1) {
    wait_copies<0>();
    __syncthreads();
    if (j + kKeys < end) start_copy(j + kKeys, buffer ^ 1);
    const __nv_bfloat16* tile = shared + 2 * buffer * kTile;
    float scores[2][4] = {};
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) add_scores<kD>(scores, query[k], tile, warp * 16, k * 16);
    mask_scores(scores, j + warp * 16, positions, view, end);
    take_scores(state, scores, factor);
    add_values(state, scores, tile + kTile, warp * 16);
  }

  // The warps' shares, put together in shared memory.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = state.total[half];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (t == 0) {
      largests[warp][g + 8 * half] = state.largest[half] * factor;
      totals[warp][g + 8 * half] = total;
    }
  }
  __syncthreads();                                // the tiles are free too
  auto* sums = reinterpret_cast<float*>(shared);  // (kRows, kD)
  for (int turn = 0; turn < kWarps; ++turn) {
    if (turn == warp) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        float largest = -INFINITY;
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, largests[w][row]);
        const float part = largest == -INFINITY ? 0.0f : exp2_fast(largests[warp][row] - largest);
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& sum = sums[row * kD + n * 8 + 2 * t + i];
            sum = (turn == 0 ? 0.0f : sum) + state.sums[n][2 * half + i] * part;
          }
      }
    }
    __syncthreads();
  }
  const int64_t first_part = (batch * view.n_kv_heads + kv_head) * parts.n_tiles + tile_of_rows;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * head_dim; i += kThreads) {
    const int row = i / head_dim, column = i % head_dim;
    const int64_t at = (first_part * kRows + row) * parts.n_splits + blockIdx.x;
    parts.sums[at * head_dim + column] = sums[row * kD + column];
  }
  if (threadIdx.x < kRows) {
    const int row = static_cast<int>(threadIdx.x);
    float largest = -INFINITY, total = 0;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, largests[w][row]);
    for (int w = 0; w < kWarps && largest != -INFINITY; ++w)
      total += totals[w][row] * exp2_fast(largests[w][row] - largest);
    const int64_t at = (first_part * kRows + row) * parts.n_splits + blockIdx.x;
    parts.largest[at] = largest;
    parts.total[at] = total;
  }
}

// One block to a row of a key head's queries, one thread to a column.
__global__ void put_together(AttendView view, Parts parts) {
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

template <int kD>
void launch(Context& context, const AttendView& view, const Parts& parts) {
  constexpr int kBytes = 2 * 4 * kKeys * kTileStride<kD>;
  check(cudaFuncSetAttribute(split<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  const dim3 grid(static_cast<unsigned>(parts.n_splits),
                  static_cast<unsigned>(view.n_kv_heads * parts.n_tiles),
                  static_cast<unsigned>(view.n_batch));
  split<kD><<<grid, kThreads, kBytes, context.stream()>>>(view, parts);
  check_launch("split");
}

}  // namespace

void attend_split(const std::shared_ptr<Context>& context, const AttendView& view) {
  const int64_t n_rows = view.n_tokens * view.group(), n_tiles = ceil_div(n_rows, kRows);
  // Two blocks for every multiprocessor, unless that leaves less than a few tiles to each.
  const int64_t blocks = view.n_batch * view.n_kv_heads * n_tiles;
  const int64_t most = ceil_div(view.n_keys(), 4 * kKeys);
  const int64_t wanted = ceil_div(2 * int64_t{context->multiprocessors()}, blocks);
  const int64_t n_splits = std::clamp<int64_t>(wanted, 1, most);
  const int64_t n_parts = blocks * kRows * n_splits;
  const DeviceArray<float> memory(context, checked_mul(n_parts, view.head_dim + 2));
  Parts parts{};
  parts.sums = memory.data();
  parts.largest = parts.sums + n_parts * view.head_dim;
  parts.total = parts.largest + n_parts;
  parts.n_splits = static_cast<int>(n_splits);
  parts.n_tiles = static_cast<int>(n_tiles);
  if (view.head_dim <= 64)
    launch<64>(*context, view, parts);
  else if (view.head_dim <= 128)
    launch<128>(*context, view, parts);
  else
    launch<256>(*context, view, parts);
  const dim3 grid(static_cast<unsigned>(n_rows), static_cast<unsigned>(view.n_kv_heads),
                  static_cast<unsigned>(view.n_batch));
  put_together<<<grid, static_cast<unsigned>(round_up(view.head_dim, 32)), 0, context->stream()>>>(
      view, parts);
  check_launch("put_together");
}

}  // namespace sluice::cuda
