// Refined attention of one query, second kernel: each block decides about its share of the pages,
// lists the opened ones in shared memory, and its warps take steps of opened pages, of pages that
// are always exact, and of unopened means. The last block of a kv head joins the parts.

#pragma once

#include "backend/cuda/attention/dense/one.cuh"
#include "backend/cuda/attention/refine/one_decide.cuh"

namespace sluice::impl::cuda::refine::decode {

using dense::one::Sums;

// Rows [first, first + kStep) of the cache before `end`, for the heads in `mask`.
struct ExactRows {
  int first, end;
  uint32_t mask;
};

// A warp's softmax of each head: kAtOnce of them side by side, one to a group of lanes.
template <typename W>
struct WarpSums {
  Sums heads[W::kHeads];

  // scores: -inf where a head does not see the row.
  __device__ void add(float (&scores)[W::kHeads][W::kLoads], const Eight<W> (&rows)[W::kLoads]) {
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h) {
      Sums& sums = heads[h];
      float largest = sums.largest;
#pragma unroll
      for (const float score : scores[h]) largest = fmaxf(largest, score);
      sums.scale_to(largest);
#pragma unroll
      for (float& score : scores[h]) {
        score = largest == -INFINITY ? 0.0f : exp2_fast(score - largest);
        sums.total += score;
      }
    }
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      float value[8];
      rows[k].widen(value);
#pragma unroll
      for (int h = 0; h < W::kHeads; ++h)
#pragma unroll
        for (int c = 0; c < 8; ++c) heads[h].values[c] += scores[h][k] * value[c];
    }
  }

  __device__ void add_rows(const typename W::Element* keys, const typename W::Element* values,
                           const Decisions<W>& block, const ExactRows& rows, int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % W::kLanes * 8;
    const int own = rows.first + lane / W::kLanes;
    Eight<W> k_rows[W::kLoads], v_rows[W::kLoads];
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      const int row = own + k * W::kAtOnce;
      k_rows[k].load(keys + row * head_dim, column, head_dim, row < rows.end);
      v_rows[k].load(values + row * head_dim, column, head_dim, row < rows.end);
    }
    float scores[W::kHeads][W::kLoads];
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h) {
      float query[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) query[c] = block.queries[h][column + c];
      const bool sees = (rows.mask >> h & 1) != 0;
#pragma unroll
      for (int k = 0; k < W::kLoads; ++k) {
        float key[8];
        k_rows[k].widen(key);
        const float score = dot<W::kLanes>(query, key) * kLog2E;
        scores[h][k] = sees && own + k * W::kAtOnce < rows.end ? score : -INFINITY;
      }
    }
    add(scores, v_rows);
  }

  // Means of slots [first, first + kStep) before `end`, both counted from the round's first slot.
  __device__ void add_means(const typename W::Element* means, const Decisions<W>& block,
                            const PagesOfSplit& pages, int round_first, int first, int end,
                            int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % W::kLanes * 8;
    Eight<W> rows[W::kLoads];
    float scores[W::kHeads][W::kLoads];
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      const int slot = first + k * W::kAtOnce + lane / W::kLanes;
      bool read = false;
#pragma unroll
      for (int h = 0; h < W::kHeads; ++h) {
        scores[h][k] = slot < end ? block.scores[slot][h] : -INFINITY;
        read = read || scores[h][k] != -INFINITY;
      }
      rows[k].load(means + pages.page(round_first + slot) * head_dim, column, head_dim, read);
    }
    add(scores, rows);
  }
};

// Leaves the block's part of each head in step.parts. By all threads.
template <typename W>
__device__ void leave_parts(const Step& step, const BlockHeads& heads, WarpSums<W>& warp_sums,
                            int split, int head_dim) {
  __shared__ float sums[kWarps][8 * W::kLanes];
  __shared__ float2 shares[kWarps];  // largest and total
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto column = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int h = 0; h < W::kHeads; ++h) {
    if (h >= heads.n) break;
    Sums& own = warp_sums.heads[h];
#pragma unroll
    for (int step_of = W::kLanes; step_of < 32; step_of *= 2) {
      own.scale_to(fmaxf(own.largest, __shfl_xor_sync(0xffffffffu, own.largest, step_of)));
#pragma unroll
      for (float& value : own.values) value += __shfl_xor_sync(0xffffffffu, value, step_of);
      own.total += __shfl_xor_sync(0xffffffffu, own.total, step_of);
    }
    if (h > 0) __syncthreads();  // the head before is read
    if (lane < W::kLanes)
      for (int c = 0; c < 8; ++c) sums[warp][8 * lane + c] = own.values[c];
    if (lane == 0) shares[warp] = make_float2(own.largest, own.total);
    __syncthreads();
    float largest = -INFINITY, total = 0, sum = 0;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shares[w].x);
    for (int w = 0; w < kWarps && largest != -INFINITY; ++w) {
      const float part = exp2_fast(shares[w].x - largest);
      total += shares[w].y * part;
      if (column < head_dim) sum += sums[w][column] * part;
    }
    const int64_t at = int64_t{heads.first + h} * step.parts.n_splits + split;
    if (column < head_dim) step.parts.sums[at * head_dim + column] = sum;
    if (column == 0) {
      step.parts.largest[at] = largest;
      step.parts.total[at] = total;
    }
  }
}

template <typename W>
__global__ void __launch_bounds__(kThreads, W::kBlocks)
    attend(RefineView view, FirstPosition position, Step step) {
  using Element = typename W::Element;
  __shared__ Decisions<W> block;
  __shared__ bool is_last;
  launch_dependents();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto split = static_cast<int>(blockIdx.x), head_dim = static_cast<int>(view.head_dim);
  const int n_splits = step.parts.n_splits;
  const BlockHeads heads = block_heads<W::kHeads>(step);
  const int64_t t = position.get();
  const HeadKind kind = view.kinds[heads.kv_head];
  const Seen seen = seen_by(view, t, kind);
  const PagesOfSplit pages{seen.first_mean, seen.end_mean, split, n_splits};
  const CacheView& cache = view.cache;
  const Element* keys = rows_of<Element>(cache.keys, heads.kv_head, cache.capacity, head_dim);
  const Element* values = rows_of<Element>(cache.values, heads.kv_head, cache.capacity, head_dim);
  const Element* means =
      rows_of<Element>(cache.mean_values, heads.kv_head, cache.n_pages, head_dim);
  wait_on_dependency();

  const int n_slots = pages.slots();
  WarpSums<W> sums;
  // Steps of the pages that are always exact, distributed round-robin over blocks.
  const int n_always = seen.n_always * W::kStepsOfPage;
  int n_own = n_always <= split ? 0 : (n_always - split + n_splits - 1) / n_splits;
  for (int first = 0; first == 0 || first < n_slots; first += kRound) {
    PageInputs<W> inputs;
    inputs.load(view, step, heads, pages, first + static_cast<int>(threadIdx.x));
    if (first == 0)
      begin(block, view, step, heads, n_slots > 0);
    else
      __syncthreads();  // the round before is read
    const int in_round = min(kRound, n_slots - first);
    const int n_opened = n_slots > 0 ? decide(block, view, step, heads, pages, first, inputs) : 0;
    const int n_exact = n_own + n_opened * W::kStepsOfPage;
    const int n_steps = n_exact + (in_round + W::kStep - 1) / W::kStep;
    for (int i = warp; i < n_steps; i += kWarps) {
      if (i >= n_exact) {
        sums.add_means(means, block, pages, first, (i - n_exact) * W::kStep, in_round, head_dim);
        continue;
      }
      ExactRows rows{0, seen.t + 1, (1u << W::kHeads) - 1};
      const int step_of = i < n_own ? split + i * n_splits : i - n_own;
      int page;
      if (i < n_own) {
        page = seen.always_page(step_of / W::kStepsOfPage);
      } else {
        const uint32_t entry = block.opened[step_of / W::kStepsOfPage];
        page = static_cast<int>(entry / 16);
        rows.mask = entry % 16;
      }
      rows.first = page * kPage + step_of % W::kStepsOfPage * W::kStep;
      sums.add_rows(keys, values, block, rows, head_dim);
    }
    n_own = 0;
  }

  if (static_cast<int>(threadIdx.x) < heads.n) {
    const bool is_dense = kind == HeadKind::kDense && split == 0 && view.border(t) > 0;
    const int64_t n =
        is_dense ? view.border(t) - view.sinks : int64_t{kPage} * block.n_opened[threadIdx.x];
    if (n > 0 && view.opened != nullptr)
      atomicAdd(view.opened + t / view.segment * view.n_heads + heads.first + threadIdx.x,
                static_cast<unsigned long long>(n));
  }
  leave_parts(step, heads, sums, split, head_dim);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(step.parts.done + blockIdx.y, 1) == n_splits - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (threadIdx.x == 0) step.parts.done[blockIdx.y] = 0;
  const RowsView out{view.out, view.out_stride, W::kNarrow};
  for (int i = static_cast<int>(threadIdx.x); i < heads.n * head_dim; i += kThreads) {
    const int64_t head = heads.first + i / head_dim;
    const float value[1] = {step.parts.together(head, i % head_dim, head_dim)};
    store<1>(out, 0, head * head_dim + i % head_dim, value);
  }
}

}  // namespace sluice::impl::cuda::refine::decode
