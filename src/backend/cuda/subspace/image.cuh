// A block's rows of the product with an image, M c, on the tensor cores: tiles of 16 rows, cut into
// units along their depth, which all warps share. The first tiles are in shared memory before
// anything is known of c.

#pragma once

#include "backend/cuda/linear/row.cuh"
#include "backend/cuda/primitives/mma.cuh"
#include "backend/cuda/subspace/decision.cuh"

namespace sluice::impl::cuda::subspace {

constexpr int kUnitRows = 16, kUnitDepth = 64;
constexpr int kUnitLoads = 2 * (kUnitDepth / 32);  // of 16 bytes, to a lane
constexpr int kUnits = 4;                          // of a warp, at a time
constexpr int kMostUnits = kUnits * kGateWarps;
using UnitSums = float[kMostUnits][kUnitRows];  // in shared memory

struct ImageRows {
  linear::RowWeights image;  // (n_out, rank), no room between rows
  int depth;
  int pieces;      // units of a tile
  int at_once;     // rows that a block takes at a time
  int of_a_block;  // rows

  bool staged;  // the first rows wait in shared memory: whole units, and all of a tile's

  __device__ int begin() const { return static_cast<int>(blockIdx.x) * of_a_block; }
  __device__ int end() const { return min(begin() + of_a_block, static_cast<int>(image.n_out)); }
  // Of the first rows, what is in shared memory.
  __device__ int staged_bytes() const {
    return staged ? 2 * depth * max(0, min(at_once, end() - begin())) : 0;
  }
};

using ImageUnit = uint4[kUnitLoads];

// Of a lane in a unit: its first row, among those taken at a time, and where its part of the depth
// begins at the first step. At the second it is 32 further, or, in odd rows, 32 back: so lanes of
// neighbouring rows find their parts in different banks.
struct UnitPlace {
  int row, depth;

  __device__ static int group() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static UnitPlace of(int unit, int pieces) {
    const int tile = unit / pieces, piece = unit - tile * pieces,
              t = static_cast<int>(threadIdx.x) % 4;
    return {tile * kUnitRows + group(), piece * kUnitDepth + group() % 2 * 32 + t * 8};
  }
  __device__ int depth_at(int step) const { return depth + (group() % 2 == 0 ? 32 : -32) * step; }
};

// from: where the rows begin, in either memory; n_rows: that there are.
__device__ inline void read_unit(const UnitPlace& place, const std::byte* from, int n_rows,
                                 int depth, ImageUnit& to) {
#pragma unroll
  for (int load = 0; load < kUnitLoads; ++load) {
    const int r = place.row + load % 2 * 8, k = place.depth_at(load / 2);
    to[load] = r < n_rows && k < depth ? *reinterpret_cast<const uint4*>(from + 2 * (r * depth + k))
                                       : make_uint4(0, 0, 0, 0);
  }
}

// Rows have orders of depth of their own, and so have columns, which hold the coordinates: a row's
// product stands where it meets the column of its lanes.
__device__ inline void multiply_unit(const UnitPlace& place, const ImageUnit& weights,
                                     const std::byte* coordinates, float (&sums)[4]) {
#pragma unroll
  for (int step = 0; step < kUnitLoads / 2; ++step) {
    const uint4 c = *reinterpret_cast<const uint4*>(coordinates + 2 * place.depth_at(step));
    const uint4 &low = weights[2 * step], &high = weights[2 * step + 1];
    mma_bf16(sums, {low.x, high.x, low.y, high.y}, c.x, c.y);
    mma_bf16(sums, {low.z, high.z, low.w, high.w}, c.z, c.w);
  }
}
__device__ inline void put_sums(const float (&own)[4], float (&sums)[kUnitRows], bool joins) {
  const int g = UnitPlace::group();
  if (static_cast<int>(threadIdx.x) % 4 != g / 2) return;
  sums[g] = (g % 2 == 0 ? own[0] : own[1]) + (joins ? sums[g] : 0.0f);
  sums[g + 8] = (g % 2 == 0 ? own[2] : own[3]) + (joins ? sums[g + 8] : 0.0f);
}

// The sums of the rows from `row` on, as far as a block takes them at a time, in shared memory.
// coordinates: zeros behind the last up to whole units. Where one tile has more units than there is
// room for, they join others of it, which are the warp's own too.
__device__ __noinline__ inline void multiply_units(const ImageRows& rows, int row,
                                                   const std::byte* coordinates, UnitSums& sums) {
  const int n_units = rows.at_once / kUnitRows * rows.pieces;
  const std::byte* from = rows.image.data + 2 * row * rows.image.stride;
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x) / 32; unit < n_units; unit += kGateWarps) {
    const UnitPlace place = UnitPlace::of(unit, rows.pieces);
    ImageUnit weights;
    float own[4] = {};
    read_unit(place, from, min(rows.at_once, rows.end() - row), rows.depth, weights);
    multiply_unit(place, weights, coordinates, own);
    put_sums(own, sums[unit % kMostUnits], unit >= kMostUnits);
  }
}

// The same of the first rows, whose weights wait in shared memory and then in registers. In a tile
// with fewer rows the others are whatever lies there, and their sums too.
class ImageProduct {
 public:
  __device__ explicit ImageProduct(const ImageRows& rows) : rows_(rows) {
    const int n_rows = min(rows.at_once, rows.end() - rows.begin());
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      places_[i] = UnitPlace::of(unit_of(i), rows.pieces);
      exists_[i] = rows.staged && places_[i].row - UnitPlace::group() < n_rows;
    }
  }
  __device__ void read(const uint4* staged) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!exists_[i]) continue;
      const auto* from = reinterpret_cast<const std::byte*>(staged) +
                         2 * (places_[i].row * rows_.depth + places_[i].depth);
      const int step = 2 * places_[i].depth_at(1) - 2 * places_[i].depth;
#pragma unroll
      for (int load = 0; load < kUnitLoads; ++load)
        units_[i][load] =
            *reinterpret_cast<const uint4*>(from + load % 2 * 16 * rows_.depth + load / 2 * step);
    }
  }
  __device__ void multiply(const std::byte* coordinates, UnitSums& sums) const {
    if (!rows_.staged) return multiply_units(rows_, rows_.begin(), coordinates, sums);
    float own[kUnits][4] = {};
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (exists_[i]) multiply_unit(places_[i], units_[i], coordinates, own[i]);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (exists_[i]) put_sums(own[i], sums[unit_of(i)], false);
  }
  // Of the thread's own row, behind a barrier.
  __device__ float sum_of(const UnitSums& sums) const {
    const int own = static_cast<int>(threadIdx.x), tile = own / kUnitRows;
    const int n = min(rows_.pieces, kMostUnits);
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; ++i) sum += sums[tile * n + i][own % kUnitRows];
    return sum;
  }

 private:
  __device__ static int unit_of(int i) {
    return static_cast<int>(threadIdx.x) / 32 + i * kGateWarps;
  }

  const ImageRows& rows_;
  UnitPlace places_[kUnits];
  bool exists_[kUnits];
  ImageUnit units_[kUnits];
};

// Inputs of the epilogue of an output row: its bias, and its value before where it accumulates.
struct EpilogueInputs {
  float bias, before;
};
__device__ inline float bias_of(const linear::RowOutput& output, int row, int end) {
  return output.bias != nullptr && row < end ? output.bias[row] : 0.0f;
}
__device__ inline float before_of(const linear::RowOutput& output, int row, int end) {
  float value[1] = {0};
  if (output.accumulate && row < end) load<1>(output.out, 0, row, value);
  return value[0];
}
__device__ inline void finish(const linear::RowOutput& output, int row, float sum,
                              const EpilogueInputs& inputs) {
  sum += inputs.bias;
  const float value[1] = {output.accumulate ? inputs.before + sum
                                            : activate(output.activation, sum)};
  store<1>(output.out, 0, row, value);
}

}  // namespace sluice::impl::cuda::subspace
