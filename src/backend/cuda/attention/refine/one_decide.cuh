// Refined attention of one query: what a block decides about its share of the pages, and the list
// of the opened ones, in shared memory.

#pragma once

#include "backend/cuda/attention/refine/one.cuh"

namespace sluice::impl::cuda::refine::decode {

constexpr int kRound = 1024;  // pages that a block decides about at a time
constexpr int kPagesOfThread = kRound / kThreads;
// Neighbouring pages of a block. Opened pages lie near each other: short runs spread them over
// blocks.
constexpr int kRun = 8;

// The pages of a block: runs of kRun, distributed round-robin over splits.
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

// A block's queries and decisions, in shared memory.
template <typename W>
struct Decisions {
  alignas(16) float queries[W::kHeads][8 * W::kLanes];  // scaled; zeros behind head_dim
  float log_z[W::kHeads];
  int n_opened[W::kHeads];  // pages, over all rounds
  // Of a round:
  float scores[kRound][W::kHeads];  // of a mean in the softmax; -inf: opened, or no such page
  uint32_t opened[kRound];          // page * 16 + bits of the heads that opened it
  int counts[kWarps];               // opened pages of each warp
};

// Loads the queries and, where `decides`, joins their normalisers. By all threads.
template <typename W>
__device__ void begin(Decisions<W>& to, const RefineView& view, const Step& step,
                      const BlockHeads& heads, bool decides) {
  const int lane = static_cast<int>(threadIdx.x) % 32, h = static_cast<int>(threadIdx.x) / 32;
  static_assert(W::kHeads <= kWarps);
  if (h < W::kHeads) {
    const int column = lane % W::kLanes * 8;
    float query[8];
    load_query<W>(view, heads.first + h, column, h < heads.n, query);
    Mass mass;
    if (decides && h < heads.n) {
      const int n_splits = step.parts.n_splits;
      const float2* masses = step.masses + int64_t{heads.first + h} * n_splits;
      for (int i = lane; i < n_splits; i += 32) mass.add({masses[i].x, masses[i].y});
    }
    if (lane < W::kLanes)
#pragma unroll
      for (int c = 0; c < 8; ++c) to.queries[h][column + c] = query[c];
    mass.add_lanes(1);
    if (lane == 0) {
      to.log_z[h] = (mass.largest + log2f(mass.total)) / kLog2E;
      to.n_opened[h] = 0;
    }
  }
  __syncthreads();
}

// What a thread decides about a page from.
template <typename W>
struct PageInputs {
  float2 scores[W::kHeads];  // Step::scores; -inf: no such page or head

  __device__ void load(const RefineView& view, const Step& step, const BlockHeads& heads,
                       const PagesOfSplit& pages, int slot) {
    const int64_t n_pages = view.cache.n_pages;
    const int page = pages.page(slot);
    const bool exists = slot < pages.slots() && page < pages.end;
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h)
      scores[h] = exists && h < heads.n ? step.scores[(heads.first + h) * n_pages + page]
                                        : make_float2(-INFINITY, -INFINITY);
  }
};

// Decides about slots [first, first + kRound) and lists what is opened, in an order that depends on
// the decisions alone. By all threads. `inputs`: of slot first + threadIdx.x; those of later slots
// are loaded one page ahead. Returns how many pages are opened.
template <typename W>
__device__ int decide(Decisions<W>& to, const RefineView& view, const Step& step,
                      const BlockHeads& heads, const PagesOfSplit& pages, int first,
                      PageInputs<W> inputs) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const float delta = view.deltas[heads.kv_head];
  const int n_slots = min(pages.slots() - first, kRound);
  uint32_t masks = 0;  // four bits to a page
  int in_warp = 0;
#pragma unroll 1
  for (int i = 0; i * kThreads < n_slots; ++i) {
    const int slot = i * kThreads + static_cast<int>(threadIdx.x);
    const PageInputs<W> page = inputs;
    if ((i + 1) * kThreads < n_slots)
      inputs.load(view, step, heads, pages, first + slot + kThreads);
#pragma unroll
    for (int h = 0; h < W::kHeads; ++h) {
      const float score = page.scores[h].x;
      const bool opens = score != -INFINITY && expf(page.scores[h].y - to.log_z[h]) >= delta;
      to.scores[slot][h] = opens ? -INFINITY : (score + kLogPage) * kLog2E;
      if (opens) masks |= 1u << (4 * i + h);
      const int n = __popc(__ballot_sync(0xffffffffu, opens));
      if (lane == 0 && n > 0) atomicAdd(&to.n_opened[h], n);
    }
    in_warp += __popc(__ballot_sync(0xffffffffu, (masks >> 4 * i) != 0));
  }
  if (lane == 0) to.counts[warp] = in_warp;
  __syncthreads();
  int at = 0, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) at += to.counts[w];
    total += to.counts[w];
  }
#pragma unroll
  for (int i = 0; i < kPagesOfThread; ++i) {
    const uint32_t mask = masks >> 4 * i & 15;
    const uint32_t ballot = __ballot_sync(0xffffffffu, mask != 0);
    const int slot = i * kThreads + static_cast<int>(threadIdx.x);
    if (mask != 0)
      to.opened[at + __popc(ballot & ((1u << lane) - 1))] =
          static_cast<uint32_t>(pages.page(first + slot)) * 16 + mask;
    at += __popc(ballot);
  }
  __syncthreads();
  return total;
}

}  // namespace sluice::impl::cuda::refine::decode
