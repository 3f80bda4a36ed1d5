// Attention of few queries: the query heads of a key head are the rows of one tile, and the keys
// are split over blocks and, within a tile, over warps.

#include "backend/cuda/attention/dense/split.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::dense {
namespace {

using namespace few;

// What blocks leave: (n_batch, n_kv_heads, n_tiles, kRows, n_splits), and head_dim for the sums.
struct Parts : RowParts {
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
  using S = Sizes<kD>;
  const int64_t base =
      (block.batch * view.n_kv_heads + block.kv_head) * view.capacity * view.head_dim;
  const auto* keys = reinterpret_cast<const __nv_bfloat16*>(view.keys) + base;
  const auto* values = reinterpret_cast<const __nv_bfloat16*>(view.values) + base;
  const auto head_dim = static_cast<int>(view.head_dim);
  const int64_t first = block.begin + int64_t{i} * kKeys;
  __nv_bfloat16* tile = shared + 2 * (i % S::kStages) * S::kTile;
  if (first < block.end) {
    copy_tile<kD, kKeys, kThreads>(tile, keys, view.head_dim, first, block.end, head_dim);
    copy_tile<kD, kKeys, kThreads>(tile + S::kTile, values, view.head_dim, first, block.end,
                                   head_dim);
  }
  commit_copies();
}

template <int kD, bool kCapped>
__global__ void __launch_bounds__(kThreads, 1)
    split(AttendView view, FirstPosition position, Parts parts) {
  using S = Sizes<kD>;
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
  for (int i = 0; i < S::kStages - 1; ++i) start_copy<kD>(shared, view, block, i);
  for (int i = 0; i < n_mine; ++i) {
    wait_copies<S::kStages - 2>();
    __syncthreads();
    start_copy<kD>(shared, view, block, i + S::kStages - 1);
    const int64_t first = block.begin + int64_t{i} * kKeys + warp * 16;
    attend_tile<kD>(softmax, own, query, shared + 2 * (i % S::kStages) * S::kTile, factor,
                    [&](float(&scores)[2][4]) {
                      if constexpr (kCapped) cap_scores(scores, view.cap);
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
  const int64_t column = threadIdx.x;
  if (column >= view.head_dim) return;
  const ColumnSum all = parts.together(first, parts.n_splits, view.head_dim, column);
  const float value[1] = {all.sum / all.total};
  store<1>(RowsView{view.out, view.out_stride, true}, batch * view.n_tokens + row.token,
           row.head * view.head_dim + column, value);
}

template <int kD, bool kCapped>
void launch(Context& context, const AttendView& view) {
  const int64_t n_rows = view.n_tokens * view.group(), n_tiles = ceil_div(n_rows, kRows);
  constexpr int kBytes = Sizes<kD>::kBytes;
  const int64_t blocks = view.n_batch * view.n_kv_heads * n_tiles;
  const auto splits_for = [&](int64_t n_keys) {
    return splits_of<split<kD, kCapped>, kBytes>(context, blocks, n_keys);
  };
  // What is recorded must do for every position, and finds its memory there. So its sums may have
  // another order than those of the same step that is not.
  const FirstPosition position = first_position_of(context, view.first_position);
  const int64_t n_splits = splits_for(position.recorded == nullptr ? view.n_keys() : view.capacity);
  const int64_t n_parts = blocks * kRows * n_splits;
  const int64_t most_parts = blocks * kRows * splits_for(view.capacity);
  Parts parts{};
  parts.sums = static_cast<float*>(context.scratch(
      checked_mul(checked_mul(most_parts, view.head_dim + 2), int64_t{sizeof(float)})));
  parts.largest = parts.sums + n_parts * view.head_dim;
  parts.total = parts.largest + n_parts;
  parts.n_splits = static_cast<int>(n_splits);
  parts.n_tiles = static_cast<int>(n_tiles);
  const dim3 grid(static_cast<unsigned>(n_splits), static_cast<unsigned>(view.n_kv_heads * n_tiles),
                  static_cast<unsigned>(view.n_batch));
  launch_programmatic(context, "split", split<kD, kCapped>,
                      {.grid = grid, .threads = kThreads, .shared_bytes = kBytes}, view, position,
                      parts);
  const dim3 rows(static_cast<unsigned>(n_rows), static_cast<unsigned>(view.n_kv_heads),
                  static_cast<unsigned>(view.n_batch));
  launch_programmatic(context, "put_together", put_together, rows,
                      static_cast<int>(round_up(view.head_dim, 32)), view, parts);
}

}  // namespace

void attend_split(Context& context, const AttendView& view) {
  const bool capped = view.cap > 0;
  if (view.head_dim <= 64) return (capped ? launch<64, true> : launch<64, false>)(context, view);
  if (view.head_dim <= 128) return (capped ? launch<128, true> : launch<128, false>)(context, view);
  (capped ? launch<256, true> : launch<256, false>)(context, view);
}

}  // namespace sluice::impl::cuda::dense
