// Splits the keys of a segment into pages by one thread block: reference/attention/refine/
// clusters.cpp, kPages. All groups of a level are halved at once.

#pragma once

#include "backend/cuda/attention/refine/split_state.cuh"

namespace sluice::cuda::refine {

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
#pragma unroll 4
  for (int page = begin; page < end; ++page) {
    const float2 x = *reinterpret_cast<const float2*>(s.sums + page * s.width + i);
    sum = make_float2(sum.x + x.x, sum.y + x.y);
  }
  return sum;
}

// Means of groups, of the sums of their pages; they become the groups' vectors. A warp per group.
__device__ inline void set_means(const Split& s) {
  for (int group = warp_id(); group < s.groups->n; group += split_warps()) {
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
  for (int group = warp_id(); group < s.groups->n; group += split_warps()) {
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
  for (int page = warp_id(); page < s.n_pages; page += split_warps()) {
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
  for (int place = static_cast<int>(threadIdx.x); place < s.n_rows; place += split_threads()) {
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
  for (int i = thread; i < s.n_rows; i += split_threads()) s.rows()[i] = static_cast<uint16_t>(i);
  for (int i = thread; i < s.n_pages; i += split_threads()) {
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
      for (int group = warp_id(); group < s.groups->n; group += split_warps())
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
    for (int i = thread; i < s.n_rows; i += split_threads())
      s.rows()[i] = static_cast<uint16_t>(s.order()[i] >> 16);
    __syncthreads();
  }
}

}  // namespace sluice::cuda::refine
