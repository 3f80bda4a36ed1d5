// Splits the keys of a segment into pages by one thread block: reference/attention/refine/
// clusters.cpp, kPages. Warps share the first groups; then each has one of its own and goes on
// alone.

#pragma once

#include "backend/cuda/attention/refine/covariance.cuh"

namespace sluice::impl::cuda::refine {

// Pages of places.
struct Group {
  int first, count;

  __device__ int begin() const { return first * kPage; }
  __device__ int end() const { return (first + count) * kPage; }
  __device__ int lower_rows() const { return (count + 1) / 2 * kPage; }  // of the first half
};
// Number `index` of the 2^depth groups that `group` is split into; of some nothing is left.
__device__ inline Group group_at(Group group, int depth, int index) {
  for (int bit = depth - 1; bit >= 0; --bit) {
    const int half = (group.count + 1) / 2;
    const bool second = (index >> bit & 1) != 0;
    group = second ? Group{group.first + half, group.count - half} : Group{group.first, half};
  }
  return group;
}

// Calls use(x, y) for the dimensions of a row and of a vector (kDims).
template <typename Use>
__device__ void for_dims(const Split& s, int row, const float* vector, const Use& use) {
#pragma unroll
  for (int unit = 0; unit < kDims / 8; ++unit) {
    float x[8];
    widen_eight(*reinterpret_cast<const uint4*>(s.unit(row, unit)), x);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 y = reinterpret_cast<const float4*>(vector)[2 * unit + half];
      use(x[4 * half], y.x);
      use(x[4 * half + 1], y.y);
      use(x[4 * half + 2], y.z);
      use(x[4 * half + 3], y.w);
    }
  }
}

// Of equal ones the first.
__device__ inline void take_further(Furthest& best, Furthest other) {
  if (other.distance2 > best.distance2 ||
      (other.distance2 == best.distance2 && other.place < best.place))
    best = other;
}

// The key of a group that is furthest from `mean`, of this warp's places: from `first` on, every
// `step` places.
__device__ inline Furthest furthest_of(const Split& s, Group group, const float* mean, int first,
                                       int step) {
  Furthest best{-1, group.begin()};
  for (int place = group.begin() + first + lane_id(); place < group.end(); place += step) {
    float distance2 = 0;
    for_dims(s, s.rows[place], mean,
             [&](float x, float y) { distance2 = fmaf(x - y, x - y, distance2); });
    take_further(best, {distance2, place});
  }
  for (int lanes = 16; lanes > 0; lanes /= 2)
    take_further(best, {__shfl_xor_sync(kAllLanes, best.distance2, lanes),
                        __shfl_xor_sync(kAllLanes, best.place, lanes)});
  return best;
}

// s.along of the same places. A projection that is no number counts as 0, so that ranks remain a
// permutation.
__device__ inline void project(const Split& s, Group group, const float* direction, int first,
                               int step) {
  for (int place = group.begin() + first + lane_id(); place < group.end(); place += step) {
    float sum = 0;
    for_dims(s, s.rows[place], direction, [&](float x, float y) { sum = fmaf(x, y, sum); });
    s.along[place] = isnan(sum) ? 0.0f : fminf(fmaxf(sum, -1e37f), 1e37f);
  }
}

// How many projections of a group hold `what`. A warp's work.
template <typename What>
__device__ int count(const Split& s, Group group, const What& what) {
  int n = 0;
  for (int place = group.begin() + lane_id(); place < group.end(); place += 32)
    n += what(s.along[place]) ? 1 : 0;
  return __reduce_add_sync(kAllLanes, n);
}

// The n-th smallest projection of a group, or a number between it and the next: by bisection. A
// warp's work.
__device__ inline float nth_smallest(const Split& s, Group group, int n) {
  float low = INFINITY, high = -INFINITY;
  for (int place = group.begin() + lane_id(); place < group.end(); place += 32) {
    low = fminf(low, s.along[place]);
    high = fmaxf(high, s.along[place]);
  }
  for (int step = 16; step > 0; step /= 2) {
    low = fminf(low, __shfl_xor_sync(kAllLanes, low, step));
    high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
  }
  if (count(s, group, [&](float x) { return x <= low; }) >= n) return low;
  // Fewer than n are at most `low`, n or more are at most `high`.
  while (true) {
    const float middle = 0.5f * low + 0.5f * high;
    if (middle <= low || middle >= high) return high;
    const int below = count(s, group, [&](float x) { return x <= middle; });
    if (below == n) return middle;
    (below < n ? low : high) = middle;
  }
}

// halve() of two pages, by counting.
__device__ inline void halve_two(const Split& s, Group group) {
  const int lane = lane_id(), place = group.begin() + lane;
  const float x = s.along[place];
  const uint16_t row = s.rows[place];
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float y = __shfl_sync(kAllLanes, x, i);
    rank += y < x || (y == x && i < lane) ? 1 : 0;
  }
  const unsigned lowers = __ballot_sync(kAllLanes, rank < kPage), before = (1u << lane) - 1;
  const int to = rank < kPage ? __popc(lowers & before) : kPage + __popc(~lowers & before);
  s.rows[group.begin() + to] = row;
}

// Moves the rows of lower projections to the first half of the group; of equal ones the earlier.
// Rows of a half keep their order. A warp's work.
__device__ inline void halve(const Split& s, Group group) {
  if (group.count == 2) return halve_two(s, group);
  const int lane = lane_id(), n = group.lower_rows();
  const unsigned before = (1u << lane) - 1;
  const float border = nth_smallest(s, group, n);
  int equal_left = n - count(s, group, [&](float x) { return x < border; });
  int lower_at = group.begin(), upper_at = lower_at + n;
  for (int first = group.begin(); first < group.end(); first += 32) {
    const int place = first + lane;
    const bool exists = place < group.end();
    const float x = exists ? s.along[place] : INFINITY;
    const unsigned equal = __ballot_sync(kAllLanes, exists && x == border);
    const bool lower =
        exists && (x < border || (x == border && __popc(equal & before) < equal_left));
    const unsigned lowers = __ballot_sync(kAllLanes, lower);
    const unsigned uppers = __ballot_sync(kAllLanes, exists && !lower);
    if (exists)
      s.next[lower ? lower_at + __popc(lowers & before) : upper_at + __popc(uppers & before)] =
          s.rows[place];
    equal_left -= __popc(equal);
    lower_at += __popc(lowers);
    upper_at += __popc(uppers);
  }
  __syncwarp();
  for (int place = group.begin() + lane; place < group.end(); place += 32)
    s.rows[place] = s.next[place];
}

// Adds what the warps of a group have, in the first of them. All warps of the block come here.
__device__ inline void fold(const Split& s, Covariance& mine, int part, int n_parts) {
  const int first = warp_id() - part;
  const auto place = [&](int i) { return s.scratch + (first / 2 + i) * Split::kFolded * 32; };
  for (int half = n_parts / 2; half > 0; half /= 2) {
    if (part >= half && part < 2 * half) mine.store(place(part - half));
    __syncthreads();
    if (part < half) mine.add(place(part));
    __syncthreads();
  }
}

// Halves a group that n_parts warps share, this one being number `part`. kAlone: there is one, and
// others are elsewhere.
template <bool kAlone>
__device__ void split_group(const Split& s, Group group, int part, int n_parts) {
  const auto wait = [] {
    if constexpr (kAlone)
      __syncwarp();
    else
      __syncthreads();
  };
  const bool split = group.count > 1, leads = split && part == 0;
  float* vector = s.vectors + (warp_id() - part) * kDims;
  Covariance covariance;
  for (int page = group.first + part; split && page < group.first + group.count; page += n_parts)
    covariance.add(s, page);
  if constexpr (!kAlone) fold(s, covariance, part, n_parts);
  if (leads) covariance.centre(group.count * kPage, vector);
  wait();
  if (split) {
    const Furthest best = furthest_of(s, group, vector, part * 32, n_parts * 32);
    if (lane_id() == 0) s.furthest[warp_id()] = best;
  }
  wait();
  if (leads) {
    Furthest best = s.furthest[warp_id()];
    for (int i = 1; i < n_parts; ++i) take_further(best, s.furthest[warp_id() + i]);
    ByRows direction = {};
    const int row = s.rows[best.place], g = lane_id() / 4;
#pragma unroll
    for (int unit = 0; unit < 4; ++unit)
      direction[unit / 2][unit % 2] = __bfloat162float(s.unit(row, unit)[g]) - vector[unit * 8 + g];
    covariance.lead(direction);
    __syncwarp();  // the mean is read
    for_rows(direction, [&](int i, float x) { vector[i] = x; });
  }
  wait();
  if (split) project(s, group, vector, part * 32, n_parts * 32);
  wait();
  if (leads) halve(s, group);
  wait();
}

// Splits until every group is a page. s.rows then holds the rows of each page, ascending.
__device__ inline void split_pages(const Split& s) {
  for (int i = static_cast<int>(threadIdx.x); i < s.n_rows; i += kSplitThreads)
    s.rows[i] = static_cast<uint16_t>(i);
  __syncthreads();
  const Group all{0, s.n_pages};
  int depth = 0;
  for (int n_parts = kSplitWarps; n_parts > 1; n_parts /= 2, ++depth)
    split_group<false>(s, group_at(all, depth, warp_id() / n_parts), warp_id() % n_parts, n_parts);
  const Group mine = group_at(all, depth, warp_id());
  for (int further = 0; mine.count > 1 << further; ++further)
    for (int i = 0; i < 1 << further; ++i) {
      const Group group = group_at(mine, further, i);
      if (group.count > 1) split_group<true>(s, group, 0, 1);
    }
  __syncthreads();
}

}  // namespace sluice::impl::cuda::refine
