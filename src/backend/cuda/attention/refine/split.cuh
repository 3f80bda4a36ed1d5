// Splits the keys of a segment into pages by one thread block: reference/attention/refine/
// clusters.cpp, kPages. All groups of a level are halved at once.
//
// Rows lie in order of place: a group is a run of whole pages, rows of a group ascend. A group's
// vector is kept as three bf16 numbers whose sum is the f32 number: in three columns of one
// operand, tensor cores multiply them exactly.

#pragma once

#include "backend/cuda/attention/refine/kernels.h"
#include "backend/cuda/element.cuh"

namespace sluice::cuda::refine {

constexpr int kSplitThreads = 512;
constexpr int kSplitWarps = kSplitThreads / 32;
constexpr int kParts = 3;  // bf16 numbers that make an f32
constexpr unsigned kAllLanes = 0xffffffffu;

__host__ __device__ constexpr int round16(int n) { return (n + 15) / 16 * 16; }

// Which pages make a group.
struct Groups {
  static constexpr int kMostPages = kMostSegment / kPage;
  int n;                          // of more than one page
  float offsets[kMostPages / 2];  // (n) taken off projections
  uint32_t lower[kMostPages];     // of pages: rows that go to the first half, bit 2 i of row i
  uint8_t begin[kMostPages / 2];  // (n) first page of a group
  uint8_t first[kMostPages];      // of pages: first page of their group
  uint8_t count[kMostPages];      // of pages: pages of their group; 1: done
  uint8_t number[kMostPages];     // of pages: their group, where count > 1
};

// The state of a split, in shared memory. Vectors of f32 have `width` numbers, zeros at the end.
struct Split {
  int head_dim, width, n_pages, n_rows, part_stride;
  Groups* groups;
  float* sums;             // (n_pages, width) weighted sums of a page's keys
  float* means;            // (n_groups, width)
  __nv_bfloat16* vectors;  // (n_groups, kParts, part_stride) what rows are projected on
  float* along;            // (n_rows) projections

  // Squared norms of keys (n_rows), by row of the segment.
  __device__ float* squares() const { return along + n_rows; }
  // Row * 2^16 + old place, of a new place (n_rows).
  __device__ uint32_t* order() const { return reinterpret_cast<uint32_t*>(along + 2 * n_rows); }
  // The row of the segment at each place (n_rows).
  __device__ uint16_t* rows() const { return reinterpret_cast<uint16_t*>(along + 3 * n_rows); }

  static __host__ __device__ int most_groups(int n_pages) { return n_pages / 2; }
  // The parts of a number lie in different banks.
  static __host__ __device__ int part_stride_of(int head_dim) { return round16(head_dim) + 16; }
  static __host__ __device__ int bytes(int head_dim, int n_pages) {
    const int n_groups = most_groups(n_pages);
    return round16(int{sizeof(Groups)}) + 4 * (n_pages + n_groups) * round16(head_dim) +
           2 * kParts * n_groups * part_stride_of(head_dim) + (3 * 4 + 2) * n_pages * kPage;
  }
  __device__ Split(std::byte* memory, int head_size, int pages)
      : head_dim(head_size),
        width(round16(head_size)),
        n_pages(pages),
        n_rows(pages * kPage),
        part_stride(part_stride_of(head_size)) {
    groups = reinterpret_cast<Groups*>(memory);
    sums = reinterpret_cast<float*>(memory + round16(int{sizeof(Groups)}));
    means = sums + n_pages * width;
    vectors = reinterpret_cast<__nv_bfloat16*>(means + most_groups(n_pages) * width);
    along = reinterpret_cast<float*>(vectors + most_groups(n_pages) * kParts * part_stride);
  }
  __device__ __nv_bfloat16* vector(int group) const {
    return vectors + group * kParts * part_stride;
  }
  // Where a part has number i: of 16 numbers, those that a lane multiplies lie side by side.
  static __device__ int part_place(int i) {
    return i / 16 * 16 + i % 8 / 2 * 4 + i / 8 % 2 * 2 + i % 2;
  }
};

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// What two numbers have beyond their bf16 values.
__device__ inline float2 remainder_of(float2 x, uint32_t narrow) {
  const float2 wide = widened(narrow);
  return make_float2(x.x - wide.x, x.y - wide.y);
}
// Numbers i and i + 1 of a group's vector; i is even.
__device__ inline void put_pair(const Split& s, int group, int i, float2 x) {
  __nv_bfloat16* to = s.vector(group) + Split::part_place(i);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint32_t narrow = narrowed(x.x, x.y);
    *reinterpret_cast<uint32_t*>(to + part * s.part_stride) = narrow;
    x = remainder_of(x, narrow);
  }
}
__device__ inline float vector_at(const Split& s, int group, int i) {
  const __nv_bfloat16* from = s.vector(group) + Split::part_place(i);
  float x = 0;
#pragma unroll
  for (int part = kParts - 1; part >= 0; --part) x += __bfloat162float(from[part * s.part_stride]);
  return x;
}

// A projection as rows are ranked by it. A number that is none counts as 0, so that ranks remain a
// permutation.
__device__ inline float deviation_of(const Split& s, int group, float dot) {
  const float x = dot - s.groups->offsets[group];
  return isnan(x) ? 0.0f : x;
}

// Numbers i and i + 1 of the sum over a group's pages.
__device__ inline float2 group_sum(const Split& s, int group, int i) {
  const int begin = s.groups->begin[group], end = begin + s.groups->count[begin];
  float2 sum = make_float2(0, 0);
  for (int page = begin; page < end; ++page) {
    const float2 x = *reinterpret_cast<const float2*>(s.sums + page * s.width + i);
    sum = make_float2(sum.x + x.x, sum.y + x.y);
  }
  return sum;
}

// Means of groups, of the sums of their pages; they become the groups' vectors. A warp per group.
__device__ inline void set_means(const Split& s) {
  for (int group = warp_id(); group < s.groups->n; group += kSplitWarps) {
    const float inverse =
        1.0f / static_cast<float>(s.groups->count[s.groups->begin[group]] * kPage);
    for (int i = 2 * lane_id(); i < s.width; i += 64) {
      float2 x = group_sum(s, group, i);
      x = make_float2(x.x * inverse, x.y * inverse);
      *reinterpret_cast<float2*>(s.means + group * s.width + i) = x;
      put_pair(s, group, i, x);
    }
    if (lane_id() == 0) s.groups->offsets[group] = 0;
  }
}

// The group's vector becomes a unit vector; pair_of(i) tells its numbers i and i + 1 before. A
// warp's work.
template <typename PairOf>
__device__ void set_direction(const Split& s, int group, const PairOf& pair_of) {
  constexpr int kHeld = 4;  // pairs of a lane
  float2 held[kHeld];
  float norm2 = 0, offset = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = 2 * lane_id() + 64 * j;
    if (i >= s.width) break;
    const float2 x = pair_of(i);
    const float2 mean = *reinterpret_cast<const float2*>(s.means + group * s.width + i);
    norm2 += x.x * x.x + x.y * x.y;
    offset += x.x * mean.x + x.y * mean.y;
    held[j] = x;
  }
  norm2 = warp_sum(norm2);
  const float inverse = norm2 > 0 ? 1 / sqrtf(norm2) : 0.0f;
  offset = warp_sum(offset) * inverse;
  if (lane_id() == 0) s.groups->offsets[group] = offset;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = 2 * lane_id() + 64 * j;
    if (i >= s.width) break;
    put_pair(s, group, i, make_float2(held[j].x * inverse, held[j].y * inverse));
  }
}

// Starts from the key that is furthest from the mean; of equal ones the first. `along` holds the
// products with the mean.
template <typename Keys>
__device__ void start_directions(const Split& s, const Keys& keys) {
  for (int group = warp_id(); group < s.groups->n; group += kSplitWarps) {
    const int first = s.groups->begin[group], begin = first * kPage;
    const int end = begin + s.groups->count[first] * kPage;
    float furthest = -INFINITY;
    int at = begin;
    for (int place = begin + lane_id(); place < end; place += 32) {
      const float distance2 = s.squares()[s.rows()[place]] - 2 * s.along[place];
      if (distance2 > furthest) {
        furthest = distance2;
        at = place;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, furthest, step);
      const int there = __shfl_xor_sync(kAllLanes, at, step);
      if (other > furthest || (other == furthest && there < at)) {
        furthest = other;
        at = there;
      }
    }
    set_direction(s, group, [&](int i) {
      const float2 mean = *reinterpret_cast<const float2*>(s.means + group * s.width + i);
      return make_float2(keys.at(s, at, i) - mean.x, keys.at(s, at, i + 1) - mean.y);
    });
  }
}

// Marks the rows that go to the first half of their group, those of lower projection; of equal ones
// the earlier. A warp per page, two lanes per row.
__device__ inline void mark_lower(const Split& s) {
  const int lane = lane_id(), half = lane % 2;
  for (int page = warp_id(); page < s.n_pages; page += kSplitWarps) {
    const int begin = s.groups->first[page] * kPage, end = begin + s.groups->count[page] * kPage;
    const int here = page * kPage, place = here + lane / 2;
    const float x = s.along[place];
    int before = 0;
    const auto four = [&](int i) { return *reinterpret_cast<const float4*>(s.along + i); };
#pragma unroll 4
    for (int i = begin + 4 * half; i < here; i += 8) {
      const float4 y = four(i);
      before += (y.x <= x ? 1 : 0) + (y.y <= x ? 1 : 0) + (y.z <= x ? 1 : 0) + (y.w <= x ? 1 : 0);
    }
#pragma unroll
    for (int i = half; i < kPage; i += 2) {
      const float y = s.along[here + i];
      before += y < x || (y == x && here + i < place) ? 1 : 0;
    }
#pragma unroll 4
    for (int i = here + kPage + 4 * half; i < end; i += 8) {
      const float4 y = four(i);
      before += (y.x < x ? 1 : 0) + (y.y < x ? 1 : 0) + (y.z < x ? 1 : 0) + (y.w < x ? 1 : 0);
    }
    before += __shfl_xor_sync(kAllLanes, before, 1);
    const bool lower = before < (s.groups->count[page] + 1) / 2 * kPage;
    const unsigned mask = __ballot_sync(kAllLanes, half == 0 && lower);
    if (lane == 0) s.groups->lower[page] = mask;
  }
}
// Tells where rows go: rows of a half keep their order. A thread per row.
__device__ inline void order_rows(const Split& s) {
  for (int place = static_cast<int>(threadIdx.x); place < s.n_rows; place += kSplitThreads) {
    const int page = place / kPage, first = s.groups->first[page], row = place % kPage;
    int n_lower = __popc(s.groups->lower[page] & ((1u << (2 * row)) - 1));
    for (int i = first; i < page; ++i) n_lower += __popc(s.groups->lower[i]);
    const bool lower = (s.groups->lower[page] >> (2 * row) & 1) != 0;
    const int upper_begin = (first + (s.groups->count[page] + 1) / 2) * kPage;
    const int to = lower ? first * kPage + n_lower : upper_begin + place - first * kPage - n_lower;
    s.order()[to] = static_cast<uint32_t>(s.rows()[place]) << 16 | static_cast<uint32_t>(place);
  }
}

// Numbers the groups that are not done. The work of one warp.
__device__ inline void number_groups(Groups& groups, int n_pages) {
  int n = 0;
  for (int page0 = 0; page0 < n_pages; page0 += 32) {
    const int page = page0 + lane_id();
    const bool begins = page < n_pages && groups.first[page] == page && groups.count[page] > 1;
    const unsigned mask = __ballot_sync(kAllLanes, begins);
    const int up_to = n + __popc(mask & (kAllLanes >> (31 - lane_id())));
    if (begins) groups.begin[up_to - 1] = static_cast<uint8_t>(page);
    if (page < n_pages) groups.number[page] = static_cast<uint8_t>(up_to > 0 ? up_to - 1 : 0);
    n += __popc(mask);
  }
  if (lane_id() == 0) groups.n = n;
}
// Halves every group, the first half having the odd page.
__device__ inline void halve_groups(Groups& groups, int n_pages) {
  for (int page = lane_id(); page < n_pages; page += 32) {
    const int first = groups.first[page], count = groups.count[page], half = (count + 1) / 2;
    const bool second = page - first >= half;
    groups.first[page] = static_cast<uint8_t>(second ? first + half : first);
    groups.count[page] = static_cast<uint8_t>(second ? count - half : half);
  }
  __syncwarp();
  number_groups(groups, n_pages);
}

// Splits until every group is a page. rows() then holds the rows of each page, ascending. Pages of
// groups that are done are left alone. Keys:
//   at(s, place, i)  an element; 0 where i is head_dim or more
//   square(s)        squares()
//   sum(s)           s.sums, all weights being 1
//   project(s)       s.along, the rows' deviations along their group's vector
//   step(s)          s.sums, the weights being these deviations
//   permute(s)       the row at old place order()[i] moves to place i
template <typename Keys>
__device__ void split_pages(const Split& s, const Keys& keys) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < s.n_rows; i += kSplitThreads) s.rows()[i] = static_cast<uint16_t>(i);
  for (int i = thread; i < s.n_pages; i += kSplitThreads) {
    s.groups->first[i] = 0;
    s.groups->count[i] = static_cast<uint8_t>(s.n_pages);
  }
  __syncthreads();
  if (warp_id() == 0) number_groups(*s.groups, s.n_pages);
  keys.square(s);
  __syncthreads();
  while (s.groups->n > 0) {
    keys.sum(s);
    __syncthreads();
    set_means(s);
    __syncthreads();
    keys.project(s);
    __syncthreads();
    start_directions(s, keys);
    __syncthreads();
    for (int step = 0; step < kPowerSteps; ++step) {
      keys.step(s);
      __syncthreads();
      for (int group = warp_id(); group < s.groups->n; group += kSplitWarps)
        set_direction(s, group, [&](int i) { return group_sum(s, group, i); });
      __syncthreads();
    }
    keys.project(s);
    __syncthreads();
    mark_lower(s);
    __syncthreads();
    order_rows(s);
    __syncthreads();
    if (warp_id() == 0) halve_groups(*s.groups, s.n_pages);
    keys.permute(s);
    for (int i = thread; i < s.n_rows; i += kSplitThreads)
      s.rows()[i] = static_cast<uint16_t>(s.order()[i] >> 16);
    __syncthreads();
  }
}

}  // namespace sluice::cuda::refine
