// Decoding of a ragged batch: one query of each sequence, whose caches and lengths are in the
// kernels' parameters. Blocks are those of split.cu; of a sequence that is shorter than others some
// find no keys.

#include "backend/cuda/attention/dense/split_block.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::dense {
namespace {

using namespace few;

constexpr int kStoreThreads = 128;

__device__ __forceinline__ int64_t position_of(const RaggedView& ragged, int64_t sequence) {
  return ragged.recorded == nullptr ? ragged.position[sequence]
                                    : ragged.recorded[ragged.row[sequence]];
}

// One block to a sequence and to keys or values; eight numbers to a thread at a time.
__global__ void store_ragged(const __grid_constant__ RaggedView ragged, RaggedRows rows,
                             int32_t n_kv_heads, int32_t head_dim) {
  launch_dependents();
  wait_on_dependency();
  const int sequence = static_cast<int>(blockIdx.x);
  const bool of_keys = blockIdx.y == 0;
  const int64_t row = ragged.row[sequence];
  const std::byte* from =
      of_keys ? rows.keys + 2 * row * rows.key_stride : rows.values + 2 * row * rows.value_stride;
  std::byte* to = of_keys ? ragged.keys[sequence] : ragged.values[sequence];
  const int64_t capacity = ragged.capacity[sequence], position = position_of(ragged, sequence);
  for (int i = 8 * static_cast<int>(threadIdx.x); i < n_kv_heads * head_dim;
       i += 8 * kStoreThreads) {
    const int64_t head = i / head_dim, column = i % head_dim;
    *reinterpret_cast<uint4*>(to + 2 * ((head * capacity + position) * head_dim + column)) =
        *reinterpret_cast<const uint4*>(from + 2 * i);
  }
}

// What the blocks of a sequence see: a batch of it alone.
__device__ __forceinline__ AttendView view_of(AttendView view, const RaggedView& ragged) {
  const auto sequence = blockIdx.z;
  view.queries += 2 * ragged.row[sequence] * view.query_stride;
  view.out += 2 * ragged.row[sequence] * view.out_stride;
  view.keys = ragged.keys[sequence];
  view.values = ragged.values[sequence];
  view.capacity = ragged.capacity[sequence];
  view.first_position = position_of(ragged, sequence);
  return view;
}

template <int kD, bool kCapped>
__global__ void __launch_bounds__(kThreads, 1)
    split_ragged(AttendView all, const __grid_constant__ RaggedView ragged, SplitParts parts) {
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  __shared__ Share shares[kWarps][kRows];
  launch_dependents();
  wait_on_dependency();
  const AttendView view = view_of(all, ragged);
  attend_share<kD, kCapped>(view, parts, Block(view, parts, 0), shared, shares);
}

__global__ void put_ragged_together(AttendView all, const __grid_constant__ RaggedView ragged,
                                    SplitParts parts) {
  launch_dependents();
  wait_on_dependency();
  const AttendView view = view_of(all, ragged);
  const int64_t r = blockIdx.x, kv_head = blockIdx.y, column = threadIdx.x;
  if (column >= view.head_dim) return;
  const Row row = row_at(view, kv_head, r);
  const float value[1] = {split_column(view, parts, kv_head, r, column)};
  store<1>(RowsView{view.out, view.out_stride, true}, 0, row.head * view.head_dim + column, value);
}

template <int kD, bool kCapped>
void launch(Context& context, const AttendView& view, const RaggedView& ragged) {
  const int64_t n_tiles = ceil_div(view.group(), int64_t{kRows});
  constexpr int kBytes = Sizes<kD>::kBytes;
  const int64_t blocks = ragged.n_sequences * view.n_kv_heads * n_tiles;
  // By the longest; few sequences of a batch leave room for more blocks of each. What is recorded
  // must do for every position, and finds its memory there.
  const auto splits_for = [&](int64_t n_keys) {
    return splits_of<split_ragged<kD, kCapped>, kBytes>(context, blocks, n_keys);
  };
  const int64_t most_splits = splits_for(view.capacity);
  const int64_t n_splits = ragged.recorded == nullptr ? splits_for(view.n_keys()) : most_splits;
  SplitParts parts = split_parts(context, blocks, view.head_dim, n_splits, most_splits);
  parts.n_tiles = static_cast<int>(n_tiles);
  const auto n_sequences = static_cast<unsigned>(ragged.n_sequences);
  const dim3 grid(static_cast<unsigned>(n_splits), static_cast<unsigned>(view.n_kv_heads * n_tiles),
                  n_sequences);
  launch_programmatic(context, "split_ragged", split_ragged<kD, kCapped>,
                      {.grid = grid, .threads = kThreads, .shared_bytes = kBytes}, view, ragged,
                      parts);
  const dim3 rows(static_cast<unsigned>(view.group()), static_cast<unsigned>(view.n_kv_heads),
                  n_sequences);
  launch_programmatic(context, "put_ragged_together", put_ragged_together, rows,
                      static_cast<int>(round_up(view.head_dim, 32)), view, ragged, parts);
}

}  // namespace

void attend_ragged(Context& context, const AttendView& view, const RaggedRows& rows,
                   const RaggedView& ragged) {
  SLUICE_CHECK(view.n_kv_heads * view.head_dim <= INT32_MAX);
  launch_programmatic(context, "store_ragged", store_ragged,
                      dim3(static_cast<unsigned>(ragged.n_sequences), 2), kStoreThreads, ragged,
                      rows, static_cast<int32_t>(view.n_kv_heads),
                      static_cast<int32_t>(view.head_dim));
  const auto launch_for = [&]<int kD>() {
    (view.cap > 0 ? launch<kD, true> : launch<kD, false>)(context, view, ragged);
  };
  if (view.head_dim <= 64) return launch_for.operator()<64>();
  if (view.head_dim <= 128) return launch_for.operator()<128>();
  launch_for.operator()<256>();
}

}  // namespace sluice::impl::cuda::dense
