// Attention of one query to a sequence, whose heads have keys of their own: decoding. The keys of a
// head are split over blocks, and a block's over groups of lanes, each of which keeps a softmax of
// its own, so that keys and values are read as fast as memory gives them. The block that is last to
// finish a head puts its parts together; with few keys, the blocks of a head are a thread block
// cluster and combine them through distributed shared memory.

#pragma once

#include "backend/cuda/attention/dense/parts.cuh"
#include "backend/cuda/primitives/rotary.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::one {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
// Loads of keys, and as many of values, that a lane has in flight; and blocks per multiprocessor.
template <bool kClustered>
constexpr int kLoads = kClustered ? 8 : 4;
template <bool kClustered>
constexpr int kBlocks = kClustered ? 2 : 3;
constexpr int kClusterSteps = 2;  // of a block, at most, where it is one of a cluster

// A softmax so far: weighted sums of this lane's 8 columns, the largest score and the weights' sum.
struct Sums {
  float values[8] = {};
  float largest = -INFINITY, total = 0;

  // What one with a larger score leaves of this one; 0 where it has seen nothing.
  __device__ void scale_to(float other) {
    const float kept = largest == -INFINITY ? 0.0f : exp2_fast(largest - other);
    for (float& value : values) value *= kept;
    total *= kept;
    largest = other;
  }
};

// Of the token whose query it is, where they are not stored yet.
struct NextToken {
  const std::byte *keys, *values;  // (n_batch, n_kv_heads, head_dim), or null: all are stored
  int64_t key_stride, value_stride;
  std::byte *key_cache, *value_cache;
  Rotation rotation;  // of queries and keys
};

// kLanes lanes hold a key, 8 columns each. The keys before a token that is not stored yet are of
// earlier passes, so they are loaded before the kernels ahead are done
// (runtime/dependent_launch.cuh).
template <int kLanes, bool kClustered>
__global__ void __launch_bounds__(kThreads, kBlocks<kClustered>)
    one_query(AttendView view, FirstPosition position, HeadParts parts, NextToken next) {
  constexpr int kLoads = one::kLoads<kClustered>;
  constexpr int kAtOnce = 32 / kLanes, kStep = kAtOnce * kLoads;  // keys of a load, and of a warp
  __shared__ float sums[kWarps][8 * kLanes], largests[kWarps], totals[kWarps];
  __shared__ bool is_last;
  launch_dependents();
  const bool adds = next.keys != nullptr;
  if (!adds) wait_on_dependency();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t split = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int column = lane % kLanes * 8;
  const int64_t own = batch * view.n_heads + head;
  const bool has_column = column < view.head_dim;
  const int64_t cached = 2 * (own * view.capacity * view.head_dim + column);
  const std::byte *keys = view.keys + cached, *values = view.values + cached;
  const uint4 zeros = make_uint4(0, 0, 0, 0);

  const int64_t n_keys = position.get() + 1;
  const int64_t seen = view.window > 0 && n_keys > view.window ? n_keys - view.window : 0;
  const int64_t begin = seen + (n_keys - seen) * split / parts.n_splits;
  const bool has_next = adds && split == parts.n_splits - 1;
  const int64_t end = has_next ? n_keys - 1 : seen + (n_keys - seen) * (split + 1) / parts.n_splits;
  const auto key_of = [&](int64_t first, int i) { return first + i * kAtOnce + lane / kLanes; };
  uint4 k[kLoads], v[kLoads];
  const auto read = [&](int64_t first) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t key = key_of(first, i), at = 2 * key * view.head_dim;
      const bool exists = key < end && has_column;
      k[i] = exists ? *reinterpret_cast<const uint4*>(keys + at) : zeros;
      v[i] = exists ? *reinterpret_cast<const uint4*>(values + at) : zeros;
    }
  };
  // The warp's keys of a later step: so they lie in the second-level cache by then.
  const auto ask = [&](int64_t later) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (lane % 8 != 0 || key_of(later, i) >= end || !has_column)
        continue;  // a line to eight lanes
      const int64_t at = 2 * key_of(later, i) * view.head_dim;
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(keys + at));
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(values + at));
    }
  };
  int64_t first = begin + warp * kStep;
  read(first);
  if (adds) {
    if (kClustered) ask(first + kWarps * kStep);
    wait_on_dependency();
  }

  float query[8];
  const int64_t in_row = head * view.head_dim;
  widen_eight(has_column ? read_rotated(view.queries + 2 * (batch * view.query_stride + in_row),
                                        column, next.rotation, n_keys - 1)
                         : zeros,
              query);
  const float factor = view.scale * kLog2E;
  Sums state;
  if (has_next && warp == 0) {
    uint4 key = zeros, value = zeros;
    if (has_column) {
      key = read_rotated(next.keys + 2 * (batch * next.key_stride + in_row), column, next.rotation,
                         n_keys - 1);
      value = *reinterpret_cast<const uint4*>(next.values +
                                              2 * (batch * next.value_stride + in_row + column));
      if (lane < kLanes) {
        const int64_t at = cached + 2 * (n_keys - 1) * view.head_dim;
        *reinterpret_cast<uint4*>(next.key_cache + at) = key;
        *reinterpret_cast<uint4*>(next.value_cache + at) = value;
      }
    }
    float wide[8], score = 0;
    widen_eight(key, wide);
#pragma unroll
    for (int c = 0; c < 8; ++c) score += query[c] * wide[c];
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      score += __shfl_xor_sync(0xffffffffu, score, step);
    if (lane < kLanes) {
      widen_eight(value, state.values);
      state.largest = score * factor;
      state.total = 1;
    }
  }
  for (; first < end; first += kWarps * kStep) {
    if (first >= begin + kWarps * kStep) read(first);
    float scores[kLoads], wide[8], largest = state.largest;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      widen_eight(k[i], wide);
      scores[i] = 0;
#pragma unroll
      for (int c = 0; c < 8; ++c) scores[i] += query[c] * wide[c];
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2)
        scores[i] += __shfl_xor_sync(0xffffffffu, scores[i], step);
      scores[i] = key_of(first, i) < end ? scores[i] * factor : -INFINITY;
      largest = fmaxf(largest, scores[i]);
    }
    if (largest == -INFINITY) continue;  // this group of lanes has no key here; shuffles are done
    state.scale_to(largest);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const float weight = exp2_fast(scores[i] - largest);
      widen_eight(v[i], wide);
#pragma unroll
      for (int c = 0; c < 8; ++c) state.values[c] += weight * wide[c];
      state.total += weight;
    }
  }

  // The groups of a warp, then the warps.
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, state.largest, step);
    const float largest = fmaxf(state.largest, other);
    if (largest != -INFINITY) state.scale_to(largest);
    for (float& value : state.values) value += __shfl_xor_sync(0xffffffffu, value, step);
    state.total += __shfl_xor_sync(0xffffffffu, state.total, step);
  }
  if (lane < kLanes)
    for (int c = 0; c < 8; ++c) sums[warp][column + c] = state.values[c];
  if (lane == 0) {
    largests[warp] = state.largest;
    totals[warp] = state.total;
  }
  __syncthreads();
  float largest = -INFINITY, total = 0, sum = 0;
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, largests[w]);
  const int mine = static_cast<int>(threadIdx.x);  // a column
  for (int w = 0; w < kWarps && largest != -INFINITY; ++w) {
    const float part = exp2_fast(largests[w] - largest);
    total += totals[w] * part;
    if (mine < 8 * kLanes) sum += sums[w][mine] * part;
  }

  const bool has_mine = mine < view.head_dim;
  const RowsView out{view.out, view.out_stride, true};
  if (parts.n_splits == 1) {
    const float value[1] = {sum / total};
    if (has_mine) store<1>(out, batch, head * view.head_dim + mine, value);
    return;
  }
  if constexpr (kClustered) {
    __shared__ ClusterPart part;
    if (has_mine) part.sums[mine] = sum;
    if (mine == 0) {
      part.largest = largest;
      part.total = total;
    }
    ClusterPart::meet();
    const auto n = static_cast<int>((view.head_dim + parts.n_splits - 1) / parts.n_splits);
    const int column_of_all = static_cast<int>(split) * n + mine;
    if (mine < n && column_of_all < view.head_dim) {
      const float value[1] = {part.together(column_of_all, parts.n_splits)};
      store<1>(out, batch, head * view.head_dim + column_of_all, value);
    }
    ClusterPart::meet();  // nobody reads this block's any more
    return;
  }
  const int64_t first_part = own * parts.n_splits;
  if (has_mine) parts.sums[(first_part + split) * view.head_dim + mine] = sum;
  if (mine == 0) {
    parts.largest[first_part + split] = largest;
    parts.total[first_part + split] = total;
  }
  __threadfence();
  __syncthreads();
  if (mine == 0) is_last = atomicAdd(parts.done + own, 1) == parts.n_splits - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (mine == 0) parts.done[own] = 0;
  const float value[1] = {parts.together(own, has_mine ? mine : 0, view.head_dim)};
  if (has_mine) store<1>(out, batch, head * view.head_dim + mine, value);
}

}  // namespace sluice::impl::cuda::one
