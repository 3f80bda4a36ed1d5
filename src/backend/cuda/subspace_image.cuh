// A block's rows of the product with an image, M c, on the matrix units: tiles of 16 rows, cut into
// units along their depth, which all warps share. The units of the first tiles are read before
// anything is known of c, and wait in registers.

#pragma once

#include "backend/cuda/linear_row.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/subspace_verdict.cuh"

namespace sluice::cuda {

constexpr int kUnitRows = 16, kUnitDepth = 64;
constexpr int kUnitLoads = 2 * (kUnitDepth / 32);  // of 16 bytes, to a lane
constexpr int kUnits = 4;                          // of a warp, that wait
constexpr int kMostUnits = kUnits * kGateWarps;
using UnitSums = float[kMostUnits][kUnitRows];  // in shared memory

class ImageProduct {
 public:
  __device__ explicit ImageProduct(const RowWeights& image)
      : image_(image), pieces_(static_cast<int>((image.depth + kUnitDepth - 1) / kUnitDepth)) {
    const int64_t n_tiles = (image.n_out + kUnitRows - 1) / kUnitRows;
    begin_ = static_cast<int>(n_tiles * blockIdx.x / gridDim.x) * kUnitRows;
    const int all = static_cast<int>(n_tiles * (blockIdx.x + 1) / gridDim.x) * kUnitRows;
    end_ = all < image.n_out ? all : static_cast<int>(image.n_out);
    constexpr int kMostTiles = kGateThreads / kUnitRows;
    tiles_ = pieces_ > kMostUnits ? 1 : kMostUnits / pieces_;
    if (tiles_ > kMostTiles) tiles_ = kMostTiles;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) read(begin_, unit_of(i), units_[i]);
  }
  // Rows of the block, and how many it takes at a time: one thread finishes each.
  __device__ int begin() const { return begin_; }
  __device__ int end() const { return end_; }
  __device__ int at_once() const { return tiles_ * kUnitRows; }

  // Leaves the sums of the first rows' units in shared memory, for sum_of() behind a barrier.
  // coordinates: zeros behind the last up to whole units.
  __device__ void multiply_first(const std::byte* coordinates, UnitSums& sums) const {
    float own[kUnits][4] = {};
#pragma unroll
    for (int i = 0; i < kUnits; ++i) multiply(unit_of(i), units_[i], coordinates, own[i]);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) put(own[i], sums[unit_of(i)], false);
    add_units(begin_, kUnits, coordinates, sums);
  }
  // The same of the rows from `row` on.
  __device__ void multiply_more(int row, const std::byte* coordinates, UnitSums& sums) const {
    add_units(row, 0, coordinates, sums);
  }
  // Of the thread's own row.
  __device__ float sum_of(const UnitSums& sums) const {
    const int own = static_cast<int>(threadIdx.x), tile = own / kUnitRows;
    const int n = pieces_ < kMostUnits ? pieces_ : kMostUnits;
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += sums[tile * n + i][own % kUnitRows];
    return sum;
  }

 private:
  using Unit = uint4[kUnitLoads];

  __device__ static int unit_of(int i) {
    return static_cast<int>(threadIdx.x) / 32 + i * kGateWarps;
  }
  // Of the lane: its first place in the depth of a unit.
  __device__ int depth_of(int unit) const {
    return unit % pieces_ * kUnitDepth + static_cast<int>(threadIdx.x) % 4 * 8;
  }

  __device__ void read(int row, int unit, Unit& to) const {
    const int tile = unit / pieces_, depth = depth_of(unit);
    row += tile * kUnitRows + static_cast<int>(threadIdx.x) % 32 / 4;
    const std::byte* from = image_.data + 2 * (row * image_.stride + depth);
#pragma unroll
    for (int load = 0; load < kUnitLoads; ++load) {
      const int r = load % 2 * 8, k = load / 2 * 32;
      to[load] = tile < tiles_ && row + r < end_ && depth + k < image_.depth
                     ? read_once(from + 2 * (r * image_.stride + k))
                     : make_uint4(0, 0, 0, 0);
    }
  }

  __device__ void multiply(int unit, const Unit& weights, const std::byte* coordinates,
                           float (&sums)[4]) const {
    const std::byte* from = coordinates + 2 * depth_of(unit);
#pragma unroll
    for (int load = 0; load < kUnitLoads; load += 2) {
      const uint4 c = *reinterpret_cast<const uint4*>(from + load / 2 * 64);
      const uint4 &low = weights[load], &high = weights[load + 1];
      mma_bf16(sums, {low.x, high.x, low.y, high.y}, c.x, c.y);
      mma_bf16(sums, {low.z, high.z, low.w, high.w}, c.z, c.w);
    }
  }
  // All columns of a product are alike.
  __device__ static void put(const float (&own)[4], float (&sums)[kUnitRows], bool joins) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
    if (lane % 4 != 0) return;
    sums[g] = own[0] + (joins ? sums[g] : 0.0f);
    sums[g + 8] = own[2] + (joins ? sums[g + 8] : 0.0f);
  }
  // Units beyond those that waited; where one tile has more than there is room for, they join
  // others of it, which are the warp's own too.
  __device__ void add_units(int row, int i, const std::byte* coordinates, UnitSums& sums) const {
#pragma unroll 1
    for (; unit_of(i) < tiles_ * pieces_; ++i) {
      const int unit = unit_of(i);
      Unit weights;
      float own[4] = {};
      read(row, unit, weights);
      multiply(unit, weights, coordinates, own);
      put(own, sums[unit % kMostUnits], unit >= kMostUnits);
    }
  }

  const RowWeights& image_;
  int pieces_, tiles_;  // units of a tile; tiles of a block at a time
  int begin_, end_;
  Unit units_[kUnits];
};

}  // namespace sluice::cuda
