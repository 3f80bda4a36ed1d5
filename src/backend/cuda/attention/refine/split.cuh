// Splits the keys of a segment into pages by one thread block: reference/attention/refine/
// clusters.cpp, kPages. All groups of a level are halved at once.
//
// Rows lie in order of place: a group is a run of whole pages, so each tile of 16 rows belongs to
// one group. A group's vectors and the rows' weights are kept as three bf16 numbers whose sum is
// the f32 number: in three columns of one operand, tensor cores multiply them exactly.

#pragma once

#include "backend/cuda/attention/refine/kernels.h"
#include "backend/cuda/element.cuh"

namespace sluice::cuda::refine {

constexpr int kSplitThreads = 512;
constexpr int kSplitWarps = kSplitThreads / 32;
constexpr int kPowerSteps = 3;  // towards the leading direction of a group
constexpr int kParts = 3;       // bf16 numbers that make an f32
constexpr unsigned kAllLanes = 0xffffffffu;

__host__ __device__ constexpr int round16(int bytes) { return (bytes + 15) / 16 * 16; }
// From one part of n numbers to the next: the parts of a number lie in different banks.
__host__ __device__ constexpr int part_stride(int n) { return (n + 7) / 8 * 8 + 8; }

// The state of a split, in shared memory.
struct Split {
  int head_dim, n_pages, n_rows, vector_stride, weight_stride;
  float* means;            // (n_groups, head_dim)
  __nv_bfloat16* vectors;  // (n_groups, kParts, vector_stride) what rows are projected on
  float* offsets;          // (n_groups) taken off projections
  float* along;            // (n_rows) projections
  __nv_bfloat16* weights;  // (kParts, weight_stride) projections again
  float* squares;          // (n_rows) squared norms of keys, by row of the segment
  uint32_t* order;         // (n_rows) row * 2^16 + old place, of a new place
  uint32_t* sorted;        // (n_rows) the same, rows of a page ascending
  uint16_t* rows;          // (n_rows) row of the segment at each place
  uint8_t* first;          // (n_pages) first page of the page's group
  uint8_t* count;          // (n_pages) pages of the group; 1: done
  uint8_t* group;          // (n_pages) its number, where count > 1
  uint8_t* begin;          // (n_groups) its first page
  int* n_groups;           // of more than one page

  static __host__ __device__ int most_groups(int n_pages) { return n_pages / 2; }
  static __host__ __device__ int bytes(int head_dim, int n_pages) {
    const int groups = most_groups(n_pages), rows = n_pages * kPage;
    return round16(4 * groups * head_dim) + round16(2 * kParts * groups * part_stride(head_dim)) +
           round16(4 * groups) + 2 * round16(4 * rows) + round16(2 * kParts * part_stride(rows)) +
           2 * round16(4 * rows) + round16(2 * rows) + 3 * round16(n_pages) + round16(groups) + 16;
  }
  __device__ Split(std::byte* memory, int head_size, int pages)
      : head_dim(head_size),
        n_pages(pages),
        n_rows(pages * kPage),
        vector_stride(part_stride(head_size)),
        weight_stride(part_stride(n_rows)) {
    const int groups = most_groups(n_pages);
    const auto take = [&]<typename T>(T*& array, int n) {
      array = reinterpret_cast<T*>(memory);
      memory += round16(n * static_cast<int>(sizeof(T)));
    };
    take(means, groups * head_dim);
    take(vectors, kParts * groups * vector_stride);
    take(offsets, groups);
    take(along, n_rows);
    take(squares, n_rows);
    take(weights, kParts * weight_stride);
    take(order, n_rows);
    take(sorted, n_rows);
    take(rows, n_rows);
    take(first, n_pages);
    take(count, n_pages);
    take(group, n_pages);
    take(begin, groups);
    take(n_groups, 1);
  }
  __device__ __nv_bfloat16* vector(int group) const {
    return vectors + group * kParts * vector_stride;
  }
};

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Number i of an array (kParts, stride).
__device__ inline void put_parts(__nv_bfloat16* parts, int stride, int i, float x) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const __nv_bfloat16 narrow = __float2bfloat16_rn(x);
    parts[part * stride + i] = narrow;
    x -= __bfloat162float(narrow);
  }
}
__device__ inline float joined(const __nv_bfloat16* parts, int stride, int i) {
  float x = 0;
#pragma unroll
  for (int part = kParts - 1; part >= 0; --part) x += __bfloat162float(parts[part * stride + i]);
  return x;
}

// What project() leaves of the row at `place`. A number that is none counts as 0, so that ranks
// remain a permutation.
__device__ inline void put_projection(const Split& s, int place, float dot) {
  float x = dot - s.offsets[s.group[place / kPage]];
  if (isnan(x)) x = 0;
  s.along[place] = x;
  put_parts(s.weights, s.weight_stride, place, x);
}
// What combine() leaves of a group's weighted sum of keys.
__device__ inline void put_sum(const Split& s, int group, int i, float sum, bool mean) {
  if (mean) {
    sum /= static_cast<float>(s.count[s.begin[group]] * kPage);
    s.means[group * s.head_dim + i] = sum;
    if (i == 0) s.offsets[group] = 0;
  }
  put_parts(s.vector(group), s.vector_stride, i, sum);
}

// The group's vector becomes a unit vector, of the numbers that x_of tells. A warp's work.
template <typename ValueOf>
__device__ void set_direction(const Split& s, int group, const ValueOf& x_of) {
  float norm2 = 0, offset = 0;
  for (int i = lane_id(); i < s.head_dim; i += 32) {
    const float x = x_of(i);
    norm2 += x * x;
    offset += x * s.means[group * s.head_dim + i];
  }
  norm2 = warp_sum(norm2);
  const float inverse = norm2 > 0 ? 1 / sqrtf(norm2) : 0.0f;
  offset = warp_sum(offset) * inverse;
  if (lane_id() == 0) s.offsets[group] = offset;
  for (int i = lane_id(); i < s.head_dim; i += 32)
    put_parts(s.vector(group), s.vector_stride, i, x_of(i) * inverse);
}

// Starts from the key that is furthest from the mean; of equal ones the first. `along` holds the
// products with the mean.
template <typename Keys>
__device__ void start_directions(const Split& s, const Keys& keys) {
  for (int group = warp_id(); group < *s.n_groups; group += kSplitWarps) {
    const int begin = s.begin[group] * kPage, end = begin + s.count[s.begin[group]] * kPage;
    float furthest = -INFINITY;
    int at = begin;
    for (int place = begin + lane_id(); place < end; place += 32) {
      const float distance2 = s.squares[s.rows[place]] - 2 * s.along[place];
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
    set_direction(s, group,
                  [&](int i) { return keys.at(s, at, i) - s.means[group * s.head_dim + i]; });
  }
}

// Orders the rows of each group by projection; of equal ones the earlier row comes first. Two
// threads count for a row.
__device__ inline void rank_rows(const Split& s) {
  const int half = static_cast<int>(threadIdx.x) % 2;
  for (int place = static_cast<int>(threadIdx.x) / 2; place < s.n_rows;
       place += kSplitThreads / 2) {
    const int page = place / kPage, begin = s.first[page] * kPage, n = s.count[page] * kPage;
    const float x = s.along[place];
    const uint32_t row = s.rows[place];
    int before = 0;
    for (int i = begin + half; s.count[page] > 1 && i < begin + n; i += 2) {
      const float other = s.along[i];
      before += other < x || (other == x && s.rows[i] < row) ? 1 : 0;
    }
    before += __shfl_xor_sync(kAllLanes, before, 1);
    const int to = s.count[page] > 1 ? begin + before : place;
    if (half == 0) s.order[to] = row << 16 | static_cast<uint32_t>(place);
  }
}

// Rows of a page in ascending order.
__device__ inline void sort_pages(const Split& s) {
  for (int place = static_cast<int>(threadIdx.x); place < s.n_rows; place += kSplitThreads) {
    const int begin = place / kPage * kPage;
    const uint32_t x = s.order[place];
    int before = 0;
    for (int i = begin; i < begin + kPage; ++i) before += s.order[i] < x ? 1 : 0;
    s.sorted[begin + before] = x;
  }
}

// Numbers the groups that are not done. The work of one warp; n_pages is at most 64.
__device__ inline void number_groups(const Split& s) {
  int n = 0;
  for (int page0 = 0; page0 < s.n_pages; page0 += 32) {
    const int page = page0 + lane_id();
    const bool begins = page < s.n_pages && s.first[page] == page && s.count[page] > 1;
    const unsigned mask = __ballot_sync(kAllLanes, begins);
    const int up_to = n + __popc(mask & (kAllLanes >> (31 - lane_id())));
    if (begins) s.begin[up_to - 1] = static_cast<uint8_t>(page);
    if (page < s.n_pages) s.group[page] = static_cast<uint8_t>(up_to > 0 ? up_to - 1 : 0);
    n += __popc(mask);
  }
  if (lane_id() == 0) *s.n_groups = n;
}
// Halves every group, the first half having the odd page.
__device__ inline void halve_groups(const Split& s) {
  for (int page = lane_id(); page < s.n_pages; page += 32) {
    const int first = s.first[page], count = s.count[page], half = (count + 1) / 2;
    const bool second = page - first >= half;
    s.first[page] = static_cast<uint8_t>(second ? first + half : first);
    s.count[page] = static_cast<uint8_t>(second ? count - half : half);
  }
  __syncwarp();
  number_groups(s);
}

// Splits until every group is a page. s.rows then holds the rows of each page, ascending. Keys:
//   at(s, place, i)    an element
//   project(s)         put_projection of every row of a group, with the group's vector
//   combine(s, mean)   put_sum of every group, with the rows' weights
//   permute(s, order)  the row at old place order[i] moves to place i. Ends with the block in step
template <typename Keys>
__device__ void split_pages(const Split& s, const Keys& keys) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < s.n_rows; i += kSplitThreads) s.rows[i] = static_cast<uint16_t>(i);
  for (int i = thread; i < s.n_pages; i += kSplitThreads) {
    s.first[i] = 0;
    s.count[i] = static_cast<uint8_t>(s.n_pages);
  }
  __syncthreads();
  if (warp_id() == 0) number_groups(s);
  for (int row = warp_id(); row < s.n_rows; row += kSplitWarps) {
    float sum = 0;
    for (int i = lane_id(); i < s.head_dim; i += 32) sum += keys.at(s, row, i) * keys.at(s, row, i);
    sum = warp_sum(sum);
    if (lane_id() == 0) s.squares[row] = sum;
  }
  __syncthreads();
  while (*s.n_groups > 0) {
    for (int i = thread; i < s.n_rows; i += kSplitThreads)
      put_parts(s.weights, s.weight_stride, i, 1);
    __syncthreads();
    keys.combine(s, true);
    __syncthreads();
    keys.project(s);
    __syncthreads();
    start_directions(s, keys);
    __syncthreads();
    for (int step = 0; step < kPowerSteps; ++step) {
      keys.project(s);
      __syncthreads();
      keys.combine(s, false);
      __syncthreads();
      for (int group = warp_id(); group < *s.n_groups; group += kSplitWarps)
        set_direction(s, group, [&](int i) { return joined(s.vector(group), s.vector_stride, i); });
      __syncthreads();
    }
    keys.project(s);
    __syncthreads();
    rank_rows(s);
    __syncthreads();
    if (warp_id() == 0) halve_groups(s);
    __syncthreads();
    const bool last = *s.n_groups == 0;
    if (last) sort_pages(s);
    __syncthreads();
    const uint32_t* order = last ? s.sorted : s.order;
    keys.permute(s, order);
    for (int i = thread; i < s.n_rows; i += kSplitThreads)
      s.rows[i] = static_cast<uint16_t>(order[i] >> 16);
    __syncthreads();
  }
}

}  // namespace sluice::cuda::refine
