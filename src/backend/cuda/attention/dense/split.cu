// Attention of few queries: the query heads of a key head are the rows of one tile, and the keys
// are split over blocks and, within a tile, over warps.

#include "backend/cuda/attention/dense/split_block.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::dense {
namespace {

using namespace few;

template <int kD, bool kCapped>
__global__ void __launch_bounds__(kThreads, 1)
    split(AttendView view, FirstPosition position, SplitParts parts) {
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  __shared__ Share shares[kWarps][kRows];
  launch_dependents();
  wait_on_dependency();
  view.first_position = position.get();
  attend_share<kD, kCapped>(view, parts, Block(view, parts, blockIdx.z), shared, shares);
}

// One block to a row of a key head's queries, one thread to a column.
__global__ void put_together(AttendView view, SplitParts parts) {
  launch_dependents();
  wait_on_dependency();
  const int64_t r = blockIdx.x, kv_head = blockIdx.y, batch = blockIdx.z;
  const Row row = row_at(view, kv_head, r);
  const int64_t column = threadIdx.x;
  if (column >= view.head_dim) return;
  const float value[1] = {split_column(view, parts, kv_head, r, column)};
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
  SplitParts parts =
      split_parts(context, blocks, view.head_dim, n_splits, splits_for(view.capacity));
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
