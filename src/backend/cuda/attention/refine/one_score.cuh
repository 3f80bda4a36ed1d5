// Refined attention of one query, first kernel: stores this token's key and value, scores the means
// of heads that decide, and sums the shares of their normalisers.

#pragma once

#include "backend/cuda/attention/refine/one.cuh"

namespace sluice::impl::cuda::refine::decode {

// One prefetch to a line, by the lane that has its first column.
template <typename W>
__device__ void prefetch_row(const typename W::Element* row, int column, int head_dim) {
  constexpr int kColumns = 128 / static_cast<int>(sizeof(typename W::Element));
  if (column % kColumns == 0 && column < head_dim)
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(row + column));
}

template <typename W>
__device__ void store_next(const RefineView& view, const NextRows& next, int kv_head, int64_t t) {
  using Element = typename W::Element;
  const int64_t from = kv_head * view.head_dim;
  const int64_t to = (kv_head * view.cache.capacity + t) * view.head_dim;
  const auto copy = [&](std::byte* cache, const std::byte* rows, int64_t c) {
    reinterpret_cast<Element*>(cache)[to + c] = reinterpret_cast<const Element*>(rows)[from + c];
  };
  for (int64_t c = threadIdx.x; c < view.head_dim; c += kThreads) {
    copy(view.cache.keys, next.keys, c);
    copy(view.cache.values, next.values, c);
  }
}

// The rows of a step of a warp: [first, end) of one kind, at most kStep.
struct StepRows {
  bool exact;  // rows of the cache; else means
  int first, end;
};
template <typename W>
__device__ StepRows step_rows(const Seen& seen, int i) {
  const int n_exact = seen.n_always * W::kStepsOfPage;
  if (i >= n_exact) return {false, seen.first_mean + (i - n_exact) * W::kStep, seen.end_mean};
  const int page = seen.always_page(i / W::kStepsOfPage);
  return {true, page * kPage + i % W::kStepsOfPage * W::kStep, seen.t + 1};
}

// The queries' sums of squares by group of dimensions, scaled and rounded to bf16: those of group g
// in lane g of a row, alike for each of a warp's rows. By all threads.
template <typename W>
__device__ void load_squares(const RefineView& view, const BlockHeads& heads,
                             const float (&queries)[W::kHeads][8], float (&squares)[W::kHeads]) {
  __shared__ float scaled[W::kHeads][8 * W::kLanes];
  __shared__ uint16_t dims[8 * W::kLanes + kSpreadGroups + 1];  // DeviceGroups
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const auto head_dim = static_cast<int>(view.head_dim), n_dims = head_dim + kSpreadGroups + 1;
  if (thread < W::kLanes)
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h)
#pragma unroll
      for (int c = 0; c < 8; ++c) scaled[h][8 * thread + c] = queries[h][c];
  for (int i = thread; i < n_dims; i += kThreads)
    dims[i] = view.cache.dims[heads.kv_head * n_dims + i];
  __syncthreads();
#pragma unroll
  for (float& square : squares) square = 0;
  // Four lanes sum a group.
  const int end = dims[head_dim + lane / 4 + 1];
  for (int i = dims[head_dim + lane / 4] + lane % 4; i < end; i += 4) {
    const int d = dims[i];
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h) squares[h] += scaled[h][d] * scaled[h][d];
  }
#pragma unroll
  for (float& square : squares) {
    square += __shfl_xor_sync(0xffffffffu, square, 1);
    square += __shfl_xor_sync(0xffffffffu, square, 2);
    square = __shfl_sync(0xffffffffu, square, lane % W::kLanes % kSpreadGroups * 4);
    square = __bfloat162float(__float2bfloat16(square));
  }
}

// Leaves the block's share of each head's normaliser in step.masses. By all threads.
template <typename W>
__device__ void leave_masses(const Step& step, const BlockHeads& heads, Mass (&masses)[W::kHeads],
                             int split) {
  __shared__ float2 shares[W::kHeads][kWarps];  // largest and total
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int h = 0; h < W::kHeads; ++h) {
    masses[h].add_lanes(W::kLanes);
    if (lane == 0) shares[h][warp] = make_float2(masses[h].largest, masses[h].total);
  }
  __syncthreads();
  const auto h = static_cast<int>(threadIdx.x);
  if (h >= heads.n) return;
  Mass all;
  for (int w = 0; w < kWarps; ++w) all.add({shares[h][w].x, shares[h][w].y});
  step.masses[(heads.first + h) * step.parts.n_splits + split] =
      make_float2(all.largest, all.total);
}

// All keys but this token's are of earlier passes, so their first lines are prefetched to L2 while
// the kernels ahead finish. Settling may still move them, so nothing is read before that.
template <typename W>
__global__ void __launch_bounds__(kThreads, W::kBlocks)
    score(RefineView view, FirstPosition position, NextRows next, Step step) {
  using Element = typename W::Element;
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto split = static_cast<int>(blockIdx.x);
  const int n_splits = step.parts.n_splits, in_load = lane / W::kLanes;
  const int column = lane % W::kLanes * 8;
  const auto head_dim = static_cast<int>(view.head_dim);
  const BlockHeads heads = block_heads<W::kHeads>(step);
  const int64_t t = position.get();
  const Seen seen = seen_by(view, t, view.kinds[heads.kv_head]);
  const int n_means = seen.end_mean - seen.first_mean;
  const CacheView& cache = view.cache;
  const Element* keys = rows_of<Element>(cache.keys, heads.kv_head, cache.capacity, head_dim);
  const Element* values = rows_of<Element>(cache.values, heads.kv_head, cache.capacity, head_dim);
  const Element* mean_keys =
      rows_of<Element>(cache.mean_keys, heads.kv_head, cache.n_pages, head_dim);
  const Element* mean_values =
      rows_of<Element>(cache.mean_values, heads.kv_head, cache.n_pages, head_dim);
  const Element* next_key = rows_of<Element>(next.keys, heads.kv_head, 1, head_dim);
  const int64_t first_page = heads.kv_head * cache.n_pages;
  // Steps are dealt to blocks first, then to warps. None where nothing is to be decided.
  const int n_steps =
      n_means > 0 ? seen.n_always * W::kStepsOfPage + (n_means + W::kStep - 1) / W::kStep : 0;
  const int first_step = split + warp * n_splits;
  const auto prefetch = [&](int i, const Element* exact, const Element* means) {
    const StepRows rows = step_rows<W>(seen, i);
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      const int row = rows.first + k * W::kAtOnce + in_load;
      if (row < rows.end)
        prefetch_row<W>((rows.exact ? exact : means) + row * head_dim, column, head_dim);
    }
  };
  if (first_step < n_steps) prefetch(first_step, keys, mean_keys);
  wait_on_dependency();

  if (split == 0 && heads.first == heads.kv_head * step.group)
    store_next<W>(view, next, heads.kv_head, t);
  if (n_steps == 0) return;
  float queries[W::kHeads][8], squares[W::kHeads];
  const int group = lane % W::kLanes;
  Mass masses[W::kHeads];
#pragma unroll
  for (int h = 0; h < W::kHeads; ++h)
    load_query<W>(view, heads.first + h, column, h < heads.n, queries[h]);
  load_squares<W>(view, heads, queries, squares);
  for (int i = first_step; i < n_steps; i += n_splits * kWarps) {
    const StepRows rows = step_rows<W>(seen, i);
    Eight<W> wide_keys[W::kLoads];
    float spreads[W::kLoads], rhos[W::kLoads];
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      const int row = rows.first + k * W::kAtOnce + in_load;
      const bool exists = row < rows.end;
      const Element* from = (rows.exact ? keys : mean_keys) + row * head_dim;
      if (rows.exact && row == seen.t) from = next_key;  // another block stores it
      wide_keys[k].load(from, column, head_dim, exists);
      const bool mean = exists && !rows.exact;
      spreads[k] = mean ? spread_in(cache, first_page + row, group) : 0.0f;
      rhos[k] = mean ? cache.rhos[first_page + row] : 0.0f;
    }
    if (n_means <= step.most_prefetched) prefetch(i, values, mean_values);
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      const int row = rows.first + k * W::kAtOnce + in_load;
      float key[8];
      wide_keys[k].widen(key);
#pragma unroll
      for (int h = 0; h < W::kHeads; ++h) {
        const float score = dot<W::kLanes>(queries[h], key);
        if (rows.exact) {
          if (row < rows.end) masses[h].add({score * kLog2E, 1});
          continue;
        }
        const float variance = row_sum<W::kLanes>(squares[h] * spreads[k]);
        if (row >= rows.end) continue;
        const float sigma = sqrt_fast(variance), excess = excess_of(variance, sigma);
        const float log_mass = score + kLogPage + excess;
        masses[h].add({log_mass * kLog2E, 1});
        if (column == 0 && h < heads.n)
          step.scores[(heads.first + h) * cache.n_pages + row] =
              make_float2(score, log_mass + __logf(error_of(sigma, excess, rhos[k])));
      }
    }
  }
  leave_masses<W>(step, heads, masses, split);
}

}  // namespace sluice::impl::cuda::refine::decode
