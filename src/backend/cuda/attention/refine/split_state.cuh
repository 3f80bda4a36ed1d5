// The state of a split of a segment's keys into pages, in the shared memory of one thread block.
// split.cuh says what is done with it.
//
// Rows lie in order of place: a group is a run of whole pages, rows of a group ascend. A group's
// vector is kept as three bf16 numbers whose sum is the f32 number: in three columns of one
// operand, tensor cores multiply them exactly.

#pragma once

#include "backend/cuda/attention/refine/kernels.h"
#include "backend/cuda/element.cuh"

namespace sluice::cuda::refine {

// Threads of a block: two blocks share a multiprocessor where segments are short, one has it to
// itself where the shared memory of one segment leaves no room for two.
constexpr int kFewThreads = 512, kManyThreads = 1024;
__device__ inline int split_threads() { return static_cast<int>(blockDim.x); }
__device__ inline int split_warps() { return split_threads() / 32; }
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

}  // namespace sluice::cuda::refine
