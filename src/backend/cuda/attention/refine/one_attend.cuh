// Refined attention of one query, second kernel: each block decides about its share of the pages,
// lists the opened ones in shared memory, and its warps take steps of opened pages, of pages that
// are always exact, and of unopened means. The last block of a kv head joins the parts.

#pragma once

#include "backend/cuda/attend_one.cuh"
#include "backend/cuda/attention/refine/one.cuh"

namespace sluice::cuda::refine::decode {

using cuda::one::Sums;

constexpr int kRound = 1024;  // pages that a block decides about at a time
constexpr int kPagesOfThread = kRound / kThreads;
// Neighbouring pages of a block. Opened pages lie near each other: short runs spread them over
// blocks.
constexpr int kRun = 8;

// What a block decided about the pages of a round.
template <int kHeads>
struct Round {
  float scores[kRound][kHeads];  // of a mean for the softmax; -inf: opened, or no such page
  uint32_t opened[kRound];       // page * 16 + bits of the heads that opened it
  int counts[kWarps];            // opened pages of each warp
};

// The pages of a block: runs of kRun, dealt to splits in turn.
struct PagesOfSplit {
  int first, end;  // all means
  int split, n_splits;

  __device__ int slots() const {
    const int runs = (end - first + kRun - 1) / kRun;
    return runs <= split ? 0 : (runs - split + n_splits - 1) / n_splits * kRun;
  }
  // end or more: none.
  __device__ int page(int slot) const {
    return first + (slot / kRun * n_splits + split) * kRun + slot % kRun;
  }
};

// What a block knows about its queries before it decides.
template <typename W>
struct Decider {
  float q_norm2[W::kHeads], log_z[W::kHeads];
  float delta;

  // By all threads; log_zs is in shared memory.
  __device__ void load(const RefineView& view, const Step& step, const BlockHeads& heads,
                       const Queries<W>& queries, float (&log_zs)[W::kHeads]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (warp < heads.n) {
      const float2* masses = step.masses + (heads.first + warp) * step.parts.n_splits;
      Mass all;
      for (int i = lane; i < step.parts.n_splits; i += 32) all.add({masses[i].x, masses[i].y});
      all.add_lanes(1);
      if (lane == 0) log_zs[warp] = (all.largest + log2f(all.total)) / kLog2E;
    }
    __syncthreads();
    delta = view.deltas[heads.kv_head];
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h) {
      q_norm2[h] = queries.norm2(h);
      log_z[h] = h < heads.n ? log_zs[h] : 0.0f;
    }
  }
};

// Decides about slots [first, first + kRound) and lists what is opened, in an order that depends on
// nothing but the decisions. By all threads. Returns how many pages are opened; adds to n_opened,
// in lane 0 of each warp, the pages that each head opened.
template <typename W>
__device__ int decide(const RefineView& view, const Step& step, const BlockHeads& heads,
                      const Decider<W>& decider, const PagesOfSplit& pages, int first,
                      Round<W::kHeads>& round, int (&n_opened)[W::kHeads]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const float2* stats = view.cache.stats + heads.kv_head * view.cache.n_pages;
  uint32_t masks[kPagesOfThread], ballots[kPagesOfThread];
  int in_warp = 0;
  const int n_slots = pages.slots();
#pragma unroll
  for (int i = 0; i < kPagesOfThread; ++i) {
    const int in_round = i * kThreads + static_cast<int>(threadIdx.x), slot = first + in_round;
    const int page = pages.page(slot);
    const bool exists = slot < n_slots && page < pages.end;
    const float2 page_stats = exists ? stats[page] : make_float2(0, 0);
    masks[i] = 0;
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h) {
      float score = -INFINITY;
      if (exists && h < heads.n) {
        score = step.scores[(heads.first + h) * view.cache.n_pages + page];
        if (page_estimate(view.rule, score, decider.q_norm2[h], page_stats, decider.log_z[h]) >=
            decider.delta) {
          score = -INFINITY;
          masks[i] |= 1u << h;
        }
      }
      round.scores[in_round][h] = (score + kLogPage) * kLog2E;
    }
    ballots[i] = __ballot_sync(0xffffffffu, masks[i] != 0);
    in_warp += __popc(ballots[i]);
    if (ballots[i] == 0) continue;
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h)
      n_opened[h] += __popc(__ballot_sync(0xffffffffu, (masks[i] >> h & 1) != 0));
  }
  if (lane == 0) round.counts[warp] = in_warp;
  __syncthreads();
  int at = 0, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) at += round.counts[w];
    total += round.counts[w];
  }
#pragma unroll
  for (int i = 0; i < kPagesOfThread; ++i) {
    const int slot = first + i * kThreads + static_cast<int>(threadIdx.x);
    if (masks[i] != 0)
      round.opened[at + __popc(ballots[i] & ((1u << lane) - 1))] =
          static_cast<uint32_t>(pages.page(slot)) * 16 + masks[i];
    at += __popc(ballots[i]);
  }
  __syncthreads();
  return total;
}

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

  // Rows [first, first + kStep) of the cache before `end`, for the heads in `mask`.
  __device__ void add_rows(const typename W::Element* keys, const typename W::Element* values,
                           const Queries<W>& queries, int first, int end, uint32_t mask,
                           int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % W::kLanes * 8;
    Eight<W> k_rows[W::kLoads], v_rows[W::kLoads];
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      const int row = first + k * W::kAtOnce + lane / W::kLanes;
      k_rows[k].load(keys + int64_t{row} * head_dim, column, head_dim, row < end);
      v_rows[k].load(values + int64_t{row} * head_dim, column, head_dim, row < end);
    }
    float scores[W::kHeads][W::kLoads];
#pragma unroll
    for (int k = 0; k < W::kLoads; ++k) {
      const int row = first + k * W::kAtOnce + lane / W::kLanes;
      float key[8];
      k_rows[k].widen(key);
#pragma unroll
      for (int h = 0; h < W::kHeads; ++h) {
        const float score = queries.score(h, key) * kLog2E;
        scores[h][k] = row < end && (mask >> h & 1) != 0 ? score : -INFINITY;
      }
    }
    add(scores, v_rows);
  }

  // Means of slots [first, first + kStep) before `end`, both counted from the round's first slot.
  __device__ void add_means(const typename W::Element* means, const Round<W::kHeads>& round,
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
        scores[h][k] = slot < end ? round.scores[slot][h] : -INFINITY;
        read = read || scores[h][k] != -INFINITY;
      }
      rows[k].load(means + int64_t{pages.page(round_first + slot)} * head_dim, column, head_dim,
                   read);
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
  __shared__ Round<W::kHeads> round;
  __shared__ float log_zs[W::kHeads];
  __shared__ bool is_last;
  let_next_begin();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
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
  wait_for_earlier();

  Queries<W> queries;
  queries.load(view, heads, lane % W::kLanes * 8);
  Decider<W> decider;
  const int n_slots = pages.slots();
  if (n_slots > 0) decider.load(view, step, heads, queries, log_zs);
  WarpSums<W> sums;
  int n_opened[W::kHeads] = {};
  // Steps of the pages that are always exact, dealt to blocks in turn.
  const int n_always = seen.n_always * W::kStepsOfPage;
  int n_own = n_always <= split ? 0 : (n_always - split + n_splits - 1) / n_splits;
  for (int first = 0; first == 0 || first < n_slots; first += kRound) {
    if (first > 0) __syncthreads();  // the round before is read
    const int in_round = min(kRound, n_slots - first);
    const int n_listed =
        n_slots > 0 ? decide<W>(view, step, heads, decider, pages, first, round, n_opened) : 0;
    const int n_exact = n_own + n_listed * W::kStepsOfPage;
    const int n_steps = n_exact + (in_round + W::kStep - 1) / W::kStep;
    for (int i = warp; i < n_steps; i += kWarps) {
      if (i >= n_exact) {
        sums.add_means(means, round, pages, first, (i - n_exact) * W::kStep, in_round, head_dim);
        continue;
      }
      // An opened page is settled, so that all of its rows are before t.
      const int step_of = i < n_own ? split + i * n_splits : i - n_own;
      const uint32_t entry = i < n_own ? 0 : round.opened[step_of / W::kStepsOfPage];
      const int page =
          i < n_own ? seen.always_page(step_of / W::kStepsOfPage) : static_cast<int>(entry / 16);
      sums.add_rows(keys, values, queries, page * kPage + step_of % W::kStepsOfPage * W::kStep,
                    seen.t + 1, i < n_own ? 15u : entry % 16, head_dim);
    }
    n_own = 0;
  }

  unsigned long long* opened = view.opened + t / view.segment * view.n_heads + heads.first;
#pragma unroll
  for (int h = 0; h < W::kHeads; ++h)
    if (lane == 0 && n_opened[h] > 0)
      atomicAdd(opened + h, static_cast<unsigned long long>(n_opened[h]) * kPage);
  if (kind == HeadKind::kDense && split == 0 && static_cast<int>(threadIdx.x) < heads.n &&
      view.border(t) > 0)
    atomicAdd(opened + threadIdx.x, static_cast<unsigned long long>(view.border(t) - view.sinks));

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

}  // namespace sluice::cuda::refine::decode
