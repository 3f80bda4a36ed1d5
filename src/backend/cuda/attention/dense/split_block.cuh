// Attention of few queries, split over blocks: the share of one thread block. Kernels of sequences
// of one length (split.cu) and of a ragged batch (ragged.cu) are made of it.

#pragma once

#include "backend/cuda/attention/dense/split.cuh"

namespace sluice::impl::cuda::dense::few {

// What blocks leave: (n_batch, n_kv_heads, n_tiles, kRows, n_splits), and head_dim for the sums.
struct SplitParts : RowParts {
  int n_splits;
  int n_tiles;  // of rows, for each key head
};

// Row r of a key head's queries is token r / group, head kv_head * group + r % group.
struct Row {
  int64_t token, head;
};
__device__ inline Row row_at(const AttendView& view, int64_t kv_head, int64_t r) {
  const int64_t group = view.n_heads / view.n_kv_heads;
  return {r / group, kv_head * group + r % group};
}

// The query rows and the share of the keys of a block.
struct Block {
  int64_t batch, kv_head, row_tile;
  int64_t first_row, n_rows;  // of the tile; all rows of the key head
  int64_t begin, end;         // keys

  // batch: of the view, whose caches and rows lie side by side.
  __device__ __forceinline__ Block(const AttendView& view, const SplitParts& parts,
                                   int64_t of_batch)
      : batch(of_batch), kv_head(blockIdx.y / parts.n_tiles), row_tile(blockIdx.y % parts.n_tiles) {
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

// What a block does; blockIdx.z is the sequence whose parts it leaves. shared: Sizes<kD>::kBytes.
template <int kD, bool kCapped>
__device__ __forceinline__ void attend_share(const AttendView& view, const SplitParts& parts,
                                             const Block& block, __nv_bfloat16* shared,
                                             Share (&shares)[kWarps][kRows]) {
  using S = Sizes<kD>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
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
      ((blockIdx.z * view.n_kv_heads + block.kv_head) * parts.n_tiles + block.row_tile) * kRows;
  write_parts<kD>(parts, sums, shares, static_cast<int>(view.head_dim), kRows,
                  [&](int row) { return (first_part + row) * parts.n_splits + blockIdx.x; });
}

// A column of row r of a key head's queries, of the sequence blockIdx.z.
__device__ __forceinline__ float split_column(const AttendView& view, const SplitParts& parts,
                                              int64_t kv_head, int64_t r, int64_t column) {
  const int64_t first =
      ((blockIdx.z * view.n_kv_heads + kv_head) * parts.n_tiles * kRows + r) * parts.n_splits;
  const ColumnSum all = parts.together(first, parts.n_splits, view.head_dim, column);
  return all.sum / all.total;
}

// Memory for the parts of n_blocks tiles of rows; most_splits: that later calls may have.
inline SplitParts split_parts(Context& context, int64_t n_blocks, int64_t head_dim,
                              int64_t n_splits, int64_t most_splits) {
  const int64_t n_parts = n_blocks * kRows * n_splits, most = n_blocks * kRows * most_splits;
  SplitParts parts{};
  parts.sums = static_cast<float*>(
      context.scratch(checked_mul(checked_mul(most, head_dim + 2), int64_t{sizeof(float)})));
  parts.largest = parts.sums + n_parts * head_dim;
  parts.total = parts.largest + n_parts;
  parts.n_splits = static_cast<int>(n_splits);
  return parts;
}

}  // namespace sluice::impl::cuda::dense::few
