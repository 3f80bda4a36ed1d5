// Running means in the kernel of attention on Hopper: the warps that multiply find them between
// tiles of queries and while there is nothing to multiply. Means are all memory traffic and
// attention hardly any, so that they take less time there than on their own. Heads come in the
// order in which attention takes them up; whoever brings their rows waits until they are complete.

#pragma once

#include "backend/cuda/hopper_tile.cuh"
#include "backend/cuda/keys_means.cuh"

namespace sluice::cuda::keys_hopper {

// Words that blocks share, zero before and after: n_drawn items of attention; units of means drawn;
// parties that have left; and, per key head, units of means that are complete.
struct Common {
  int32_t* words;

  static constexpr int64_t size(int64_t n_kv_heads) { return 3 + n_kv_heads; }
  __device__ int32_t* n_drawn() const { return words; }
  __device__ int32_t* n_units() const { return words + 1; }
  __device__ int32_t* n_left() const { return words + 2; }
  __device__ int32_t* done() const { return words + 3; }
};

// A unit: the segments that begin among kSegment places, and so many columns of a head: its keys',
// then its values'.
constexpr int kUnitColumns = 256;
__device__ inline int slices_of(const MeansArgs& args) {
  return static_cast<int>((2 * args.head_dim + kUnitColumns - 1) / kUnitColumns);
}
__device__ inline int units_of_head(const MeansArgs& args) {
  return static_cast<int>((args.members.n + kSegment - 1) / kSegment) * slices_of(args);
}
__device__ inline int n_units(const MeansArgs& args) {
  return args.members.n == 0 ? 0 : units_of_head(args) * static_cast<int>(args.n_kv_heads);
}

// Places of members, 32 at a time: what is known of one of them to a lane.
struct SomePlaces {
  int32_t marked, count;

  __device__ SomePlaces(const MembersView& members, int first) : marked(0), count(0) {
    const int p = first + static_cast<int>(threadIdx.x) % 32;
    if (p >= members.n) return;
    marked = members.marked[p];
    count = members.counts_there[p];
  }
};

// What one warp does of them: the segments that begin among the kSegment places from first_place
// on, 256 of a head's columns.
__device__ inline void find_unit(const MeansArgs& args, int head, int slice, int first_place) {
  constexpr uint32_t kAll = 0xffffffffu;
  constexpr int kChunk = 32, kAhead = 16;  // rows that are on their way
  static_assert(kSegment == 2 * kChunk);
  const HeadView view = args.heads[head];
  if (view.set != args.set) return;
  const MembersView& members = args.members;
  const auto d = static_cast<int>(args.head_dim);
  const int of_head = slice * kUnitColumns + static_cast<int>(threadIdx.x) % 32 * 8;
  const bool values = of_head >= d, active = of_head < 2 * d;
  const int column = values ? of_head - d : of_head;
  ColumnMeans<8, true> columns(
      args, {(values ? args.n_kv_heads * d : 0) + int64_t{head} * d + column, values, head, column},
      view);
  const HeadRows rows = token_rows(args.tokens, values, head, d, 2);

  const auto begins = [&](int32_t marked) {
    return __ffs(static_cast<int>(__ballot_sync(kAll, (marked & kBegins) != 0)));
  };
  // Segments go on until the next one begins, kSegment places later at most.
  SomePlaces now(members, first_place), next(members, first_place + kChunk);
  const int first_begin = begins(now.marked), second_begin = begins(next.marked);
  if (first_begin == 0 && second_begin == 0) return;
  const int begin = first_begin > 0 ? first_begin - 1 : kChunk + second_begin - 1;
  int end = min(static_cast<int>(members.n) - first_place, 4 * kChunk);
  for (int chunk = 3; chunk >= 2; --chunk) {
    const int at_end = begins(SomePlaces(members, first_place + chunk * kChunk).marked);
    if (at_end > 0) end = chunk * kChunk + at_end - 1;
  }
  int chunk = 0;  // where `now` begins
  if (begin >= kChunk) {
    chunk = kChunk;
    now = next;
    next = SomePlaces(members, first_place + 2 * kChunk);
  }

  uint4 coming[kAhead] = {};
  const auto ask = [&](int p, uint4& to) {
    const int32_t marked =
        __shfl_sync(kAll, p - chunk < kChunk ? now.marked : next.marked, p % kChunk);
    if (p >= begin && p < end && active && columns.reads(marked))
      to = __ldg(
          reinterpret_cast<const uint4*>(rows.token(members.first + marked / kMarks) + 2 * column));
  };
  const int from = begin / kAhead * kAhead;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ask(from + i, coming[i]);
  for (int p = from; p < end; p += kAhead) {
    if (p - chunk == kChunk) {
      chunk = p;
      now = next;
      next = SomePlaces(members, first_place + p + kChunk);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t marked = __shfl_sync(kAll, now.marked, (p + i) % kChunk);
      const int32_t count = __shfl_sync(kAll, now.count, (p + i) % kChunk);
      float x[8];
      widen_eight(coming[i], x);
      ask(p + i + kAhead, coming[i]);
      if (p + i >= begin && p + i < end && active)
        columns.take(first_place + p + i, marked, count, x);
    }
  }
}

// By one thread of each party of a block that is through: the warps that copy, and every warp that
// finds means.
__device__ inline void leave(const MeansArgs& args, const Common& common) {
  if (args.members.n == 0) return;
  __threadfence();
  const int n = (1 + hopper::kWarps) * static_cast<int>(gridDim.x);
  if (atomicAdd(common.n_left(), 1) + 1 < n) return;
  *common.n_units() = *common.n_left() = 0;
  for (int64_t head = 0; head < args.n_kv_heads; ++head) common.done()[head] = 0;
}

// A warp that finds means between its other work: units in order, drawn by all such warps. What it
// does next is kept in shared memory: registers are few.
class MeansWarp {
 public:
  __device__ MeansWarp(const MeansArgs& args, const Common& common, int* unit)
      : args_(args), common_(common), unit_(unit) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % hopper::kWarps;
    *unit_ = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    __syncwarp();
  }
  __device__ bool has_more() const { return *unit_ < n_units(args_); }
  __device__ void find_some() {
    const int unit = *unit_;
    if (unit >= n_units(args_)) return;
    const bool first = threadIdx.x % 32 == 0;
    int next = 0;  // is here by the end of this one
    if (first)
      next = hopper::kWarps * static_cast<int>(gridDim.x) + atomicAdd(common_.n_units(), 1);
    const int of_head = units_of_head(args_), head = unit / of_head, rest = unit % of_head;
    const int n_slices = slices_of(args_);
    find_unit(args_, head, rest % n_slices, rest / n_slices * static_cast<int>(kSegment));
    __syncwarp();
    if (first) {
      __threadfence();
      atomicAdd(common_.done() + head, 1);
      *unit_ = next;
    }
    __syncwarp();
  }
  __device__ void leave() const {
    if (threadIdx.x % 32 == 0) keys_hopper::leave(args_, common_);
  }

 private:
  const MeansArgs& args_;
  const Common& common_;
  int* unit_;
};

// For a head's means. ready: bits of the first heads, those that are known to have theirs.
__device__ inline void wait_for_means(const MeansArgs& args, const Common& common, int head,
                                      uint64_t& ready) {
  if (args.members.n == 0 || (head < 64 && (ready >> head & 1) != 0)) return;
  if (threadIdx.x % 32 == 0) {
    const int needed = units_of_head(args);
    for (int n = 0; n < needed;)
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n"
                   : "=r"(n)
                   : "l"(common.done() + head)
                   : "memory");
  }
  __syncwarp();
  if (head < 64) ready |= uint64_t{1} << head;
}

}  // namespace sluice::cuda::keys_hopper
