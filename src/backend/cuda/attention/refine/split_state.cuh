// The state of a split of a segment's keys into pages, in the shared memory of one thread block.
// split.cuh says what is done with it.
//
// Keys stay where they are: a place has the number of its row. A group is a run of whole pages of
// places, and the rows of a group ascend.

#pragma once

#include "backend/cuda/attention/refine/kernels.h"
#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/primitives/warp.cuh"

namespace sluice::impl::cuda::refine {

constexpr int kSplitThreads = 256, kSplitWarps = kSplitThreads / 32;
constexpr int kDims = kSplitDims;  // of a key, as the split sees it
static_assert(kDims == 32);        // what covariance.cuh is made for

struct Furthest {
  float distance2;
  int place;
};

struct Split {
  int n_pages, n_rows;
  __nv_bfloat16* keys;  // (n_rows, kDims) in units of 16 bytes, see unit()
  uint16_t* rows;       // (n_rows) the row at each place
  float* vectors;       // (kSplitWarps, kDims) a group's mean, then its direction
  Furthest* furthest;   // (kSplitWarps)
  uint8_t* slots;       // (256) where a dimension of the head lies in a key; kDims: nowhere
  // These two lie in the scratch, which choose_dims() and fold() take as a whole before them.
  float* along;    // (n_rows) projections
  uint16_t* next;  // (n_rows) rows in their new order
  float* scratch;  // (kScratch)

  // Covariances of half of the warps, kFolded numbers of every lane.
  static constexpr int kFolded = 36;
  static constexpr int kScratch = kSplitWarps / 2 * kFolded * 32;

  static __host__ __device__ int bytes(int n_rows) {
    const int of_rows = static_cast<int>(sizeof(float) + sizeof(uint16_t)) * n_rows;
    const int scratch = kScratch * static_cast<int>(sizeof(float));
    return n_rows * (2 * kDims + 2) + (of_rows > scratch ? of_rows : scratch) +
           kSplitWarps * (4 * kDims + static_cast<int>(sizeof(Furthest))) + 256;
  }
  __device__ Split(std::byte* memory, int pages) : n_pages(pages), n_rows(pages * kPage) {
    keys = reinterpret_cast<__nv_bfloat16*>(memory);
    vectors = reinterpret_cast<float*>(keys + n_rows * kDims);
    furthest = reinterpret_cast<Furthest*>(vectors + kSplitWarps * kDims);
    slots = reinterpret_cast<uint8_t*>(furthest + kSplitWarps);
    scratch = reinterpret_cast<float*>(slots + 256);
    along = scratch;
    next = reinterpret_cast<uint16_t*>(along + n_rows);
    rows = reinterpret_cast<uint16_t*>(memory + bytes(n_rows)) - n_rows;
  }

  // Eight dimensions of a row. Units change places within a row, so that the same unit of eight
  // rows lies in different banks.
  __device__ __nv_bfloat16* unit(int row, int i) const {
    return keys + row * kDims + ((i ^ row >> 1) & 3) * 8;
  }
};

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

}  // namespace sluice::impl::cuda::refine
