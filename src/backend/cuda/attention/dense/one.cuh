// Attention of one query to a sequence, whose heads have keys of their own: decoding. The keys of a
// head are split over blocks, and a block's over groups of lanes, each of which keeps a softmax of
// its own, so that keys and values are read as fast as memory gives them. The block that is last to
// finish a head puts its parts together; with few keys, the blocks of a head are a thread block
// cluster and combine them through distributed shared memory.

#pragma once

#include "backend/cuda/attention/dense/one_keys.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::dense::one {

// Loads of keys, and as many of values, that a lane has in flight; and blocks per multiprocessor.
template <bool kClustered>
constexpr int kLoads = kClustered ? 8 : 4;
template <bool kClustered>
constexpr int kBlocks = kClustered ? 2 : 3;
constexpr int kClusterSteps = 2;  // of a block, at most, where it is one of a cluster

// What the warps of a block leave in shared memory.
template <int kLanes>
struct WarpParts {
  float sums[kWarps][8 * kLanes], largests[kWarps], totals[kWarps];
};

// The groups of a warp, put together in each of them.
template <int kLanes>
__device__ __forceinline__ void add_groups(Sums& state) {
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, state.largest, step);
    const float largest = fmaxf(state.largest, other);
    if (largest != -INFINITY) state.scale_to(largest);
    for (float& value : state.values) value += __shfl_xor_sync(0xffffffffu, value, step);
    state.total += __shfl_xor_sync(0xffffffffu, state.total, step);
  }
}

// The warps of a block, put together: the column of this thread's number.
template <int kLanes>
__device__ __forceinline__ ColumnSum add_warps(WarpParts<kLanes>& parts, const Sums& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (lane < kLanes)
    for (int c = 0; c < 8; ++c) parts.sums[warp][lane % kLanes * 8 + c] = state.values[c];
  if (lane == 0) {
    parts.largests[warp] = state.largest;
    parts.totals[warp] = state.total;
  }
  __syncthreads();
  ColumnSum all;
  for (int w = 0; w < kWarps; ++w) all.largest = fmaxf(all.largest, parts.largests[w]);
  const int mine = static_cast<int>(threadIdx.x);  // a column
  for (int w = 0; w < kWarps && all.largest != -INFINITY; ++w) {
    const float part = exp2_fast(parts.largests[w] - all.largest);
    all.total += parts.totals[w] * part;
    if (mine < 8 * kLanes) all.sum += parts.sums[w][mine] * part;
  }
  return all;
}

__device__ __forceinline__ void store_column(const AttendView& view, int64_t batch, int64_t head,
                                             int column, float x) {
  const float value[1] = {x};
  store<1>(RowsView{view.out, view.out_stride, true}, batch, head * view.head_dim + column, value);
}

// By all blocks of a head, which are a cluster: each stores a share of the columns.
__device__ __forceinline__ void combine_cluster(const AttendView& view, int n_splits,
                                                const ColumnSum& all) {
  __shared__ ClusterPart part;
  const int mine = static_cast<int>(threadIdx.x);
  if (mine < view.head_dim) part.sums[mine] = all.sum;
  if (mine == 0) {
    part.largest = all.largest;
    part.total = all.total;
  }
  ClusterPart::meet();
  const auto n = static_cast<int>((view.head_dim + n_splits - 1) / n_splits);
  const int column = static_cast<int>(blockIdx.x) * n + mine;
  if (mine < n && column < view.head_dim)
    store_column(view, blockIdx.z, blockIdx.y, column, part.together(column, n_splits));
  ClusterPart::meet();  // nobody reads this block's any more
}

// Leaves the block's part in memory; the last block of a head puts its parts together.
__device__ __forceinline__ void combine_blocks(const AttendView& view, const HeadParts& parts,
                                               const ColumnSum& all) {
  __shared__ bool is_last;
  const int mine = static_cast<int>(threadIdx.x);
  const bool has_mine = mine < view.head_dim;
  const int64_t split = blockIdx.x, own = int64_t{blockIdx.z} * view.n_heads + blockIdx.y;
  const int64_t first_part = own * parts.n_splits;
  if (has_mine) parts.sums[(first_part + split) * view.head_dim + mine] = all.sum;
  if (mine == 0) {
    parts.largest[first_part + split] = all.largest;
    parts.total[first_part + split] = all.total;
  }
  __threadfence();
  __syncthreads();
  if (mine == 0) is_last = atomicAdd(parts.done + own, 1) == parts.n_splits - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (mine == 0) parts.done[own] = 0;
  const float value = parts.together(own, has_mine ? mine : 0, view.head_dim);
  if (has_mine) store_column(view, blockIdx.z, blockIdx.y, mine, value);
}

// The keys before a token that is not stored yet are of earlier passes, so they are loaded before
// the kernels ahead are done (runtime/dependent_launch.cuh).
template <int kLanes, bool kClustered>
__global__ void __launch_bounds__(kThreads, kBlocks<kClustered>)
    one_query(AttendView view, FirstPosition position, HeadParts parts, NextToken next) {
  using Keys = Step<kLanes, kLoads<kClustered>>;
  __shared__ WarpParts<kLanes> warps;
  launch_dependents();
  const bool adds = next.keys != nullptr;
  if (!adds) wait_on_dependency();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const BlockKeys<kLanes> block(view, position.get() + 1, parts.n_splits, adds);
  Keys keys;
  int64_t first = block.begin + warp * Keys::kKeys;
  keys.load(view, block, first);
  if (adds) {
    if (kClustered) Keys::prefetch(view, block, first + Keys::kBlock);
    wait_on_dependency();
  }

  const Query query = load_query(view, block, next.rotation);
  Sums state;
  if (block.has_next && warp == 0) add_next_token(state, view, next, block, query);
  for (; first < block.end; first += Keys::kBlock) {
    if (first >= block.begin + Keys::kBlock) keys.load(view, block, first);
    keys.add_to(state, block, first, query);
  }

  add_groups<kLanes>(state);
  const ColumnSum all = add_warps(warps, state);
  const int mine = static_cast<int>(threadIdx.x);  // a column
  if (parts.n_splits == 1) {
    if (mine < view.head_dim)
      store_column(view, block.batch, block.head, mine, all.sum / all.total);
  } else if constexpr (kClustered) {
    combine_cluster(view, parts.n_splits, all);
  } else {
    combine_blocks(view, parts, all);
  }
}

}  // namespace sluice::impl::cuda::dense::one
