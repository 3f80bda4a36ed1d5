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

// All keys but this token's are of earlier passes, so their first lines are prefetched to L2 while
// the kernels ahead finish. Settling may still move them, so nothing is read before that.
template <typename W>
__global__ void __launch_bounds__(kThreads, W::kBlocks)
    score(RefineView view, FirstPosition position, NextRows next, Step step) {
  using Element = typename W::Element;
  __shared__ float2 shares[W::kHeads][kWarps];  // largest and total
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
  const float2* stats = cache.stats + heads.kv_head * cache.n_pages;
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
  float queries[W::kHeads][8], q_norm2[W::kHeads];
  Mass masses[W::kHeads];
#pragma unroll
  for (int h = 0; h < W::kHeads; ++h) {
    load_query<W>(view, heads.first + h, column, h < heads.n, queries[h]);
    q_norm2[h] = dot<W::kLanes>(queries[h], queries[h]);
  }
  for (int i = first_step; i < n_steps; i += n_splits * kWarps) {
    const StepRows rows = step_rows<W>(seen, i);
    Eight<W> wide_keys[W::kLoads];
    float2 page_stats[W::kLoads];
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      const int row = rows.first + k * W::kAtOnce + in_load;
      const bool exists = row < rows.end;
      const Element* from = (rows.exact ? keys : mean_keys) + row * head_dim;
      if (rows.exact && row == seen.t) from = next_key;  // another block stores it
      wide_keys[k].load(from, column, head_dim, exists);
      page_stats[k] = exists && !rows.exact ? stats[row] : make_float2(0, 0);
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
        if (row >= rows.end) continue;
        if (rows.exact) {
          masses[h].add({score * kLog2E, 1});
          continue;
        }
        masses[h].add({page_mass(view.rule, score, q_norm2[h], page_stats[k]) * kLog2E, 1});
        if (column == 0 && h < heads.n)
          step.scores[(heads.first + h) * cache.n_pages + row] = score;
      }
    }
  }
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
  step.masses[(heads.first + h) * n_splits + split] = make_float2(all.largest, all.total);
}

}  // namespace sluice::impl::cuda::refine::decode
