// The products of a row with the directions of V, and its norm: a block multiplies two directions
// at a time and sends them to all blocks, each of which puts together what it receives.

#pragma once

#include "backend/cuda/linear/row.cuh"
#include "backend/cuda/primitives/mma.cuh"
#include "backend/cuda/subspace/exchange.cuh"
#include "backend/cuda/subspace/staged.cuh"

namespace sluice::impl::cuda::subspace {

constexpr int kChains = 4;  // of products that do not wait for each other

struct ProjectedRow {
  linear::RowWeights vectors;  // (rank, n_in)
  const std::byte* x;
  int n_in, n_pairs, n_norms;
  int norm_width;  // elements of x in a part of its norm
};

using ChainSums = float[kChains][4];

// The tensor cores take the parts of eight groups of four lanes for rows, those of x for columns:
// where a group meets itself stands its share of the product.
__device__ inline void multiply_parts(const uint4& a, const uint4& b, const uint4& x,
                                      float (&even)[4], float (&odd)[4]) {
  mma_bf16(even, {a.x, b.x, a.y, b.y}, x.x, x.y);
  mma_bf16(odd, {a.z, b.z, a.w, b.w}, x.z, x.w);
}

// The part of x that meets what is in shared memory.
__device__ inline void read_x(const ProjectedRow& row, uint4 (&x)[kChunks]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int k = c * kChunkWidth + 8 * static_cast<int>(threadIdx.x);
    x[c] = k < row.n_in ? *reinterpret_cast<const uint4*>(row.x + 2 * k) : make_uint4(0, 0, 0, 0);
  }
}

// The block's first pair, as far as it is in shared memory.
__device__ inline void multiply_staged(const ProjectedRow& row, const uint4 (&x)[kChunks],
                                       const uint4* staged, uint64_t* arrived, ChainSums& sums) {
  BlockCopy::wait(arrived);
  const int pitch = staged_width(row.n_in) / 8;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c * kChunkWidth >= row.n_in) break;
    const int i = c * kGateThreads + static_cast<int>(threadIdx.x);
    multiply_parts(staged[i], staged[pitch + i], x[c], sums[2 * c % kChains],
                   sums[(2 * c + 1) % kChains]);
  }
}

// The rest of it, and of other pairs all.
__device__ inline void multiply_far(const ProjectedRow& row, int pair, int first, ChainSums& sums) {
#pragma unroll 1
  for (; first < row.n_in; first += kChunkWidth) {
    const int k = first + 8 * static_cast<int>(threadIdx.x);
    const auto read = [&](const std::byte* from, bool exists) {
      return exists ? *reinterpret_cast<const uint4*>(from + 2 * k) : make_uint4(0, 0, 0, 0);
    };
    const bool inside = k < row.n_in;
    const std::byte* direction = row.vectors.data + 4 * pair * row.vectors.stride;
    multiply_parts(read(direction, inside),
                   read(direction + 2 * row.vectors.stride,
                        inside && 2 * pair + 1 < static_cast<int>(row.vectors.n_out)),
                   read(row.x, inside), sums[0], sums[1]);
  }
}

// Tells the products with the pairs of a block that multiplies, of which there are n_workers.
__device__ inline void project(const ProjectedRow& row, const uint4 (&x)[kChunks],
                               const Exchange& exchange, int n_workers, const uint4* staged,
                               uint64_t* arrived) {
  __shared__ __align__(16) float parts[2][kGateWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int pair = static_cast<int>(blockIdx.x);
  if (pair >= exchange.n_pairs) __syncthreads();  // see Exchange
#pragma unroll 1
  for (; pair < exchange.n_pairs; pair += n_workers) {
    const bool is_first = pair == static_cast<int>(blockIdx.x);
    ChainSums sums = {};
    if (is_first) multiply_staged(row, x, staged, arrived, sums);
    multiply_far(row, pair, is_first ? kPass : 0, sums);
    const int g = lane / 4;
    float own[2] = {};
    if (lane % 4 == g / 2)
#pragma unroll
      for (int i = 0; i < kChains; ++i) {
        own[0] += g % 2 == 0 ? sums[i][0] : sums[i][1];
        own[1] += g % 2 == 0 ? sums[i][2] : sums[i][3];
      }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
      for (float& part : own) part += __shfl_xor_sync(0xffffffffu, part, step);
    if (!is_first) __syncthreads();  // the last parts are read
    if (lane < 2) parts[lane][warp] = lane == 0 ? own[0] : own[1];
    __syncthreads();
    if (threadIdx.x != 0) continue;
    uint32_t products[2];
#pragma unroll
    for (int d = 0; d < 2; ++d) {
      const float4 low = *reinterpret_cast<const float4*>(parts[d]);
      const float4 high = *reinterpret_cast<const float4*>(parts[d] + 4);
      products[d] = __float_as_uint(((low.x + low.y) + (low.z + low.w)) +
                                    ((high.x + high.y) + (high.z + high.w)));
    }
    exchange.tell(pair, products[0], products[1]);
  }
}

// Behind project(). By one warp, in float64: squares of numbers that are fine leave f32's range.
__device__ inline void tell_norm(const ProjectedRow& row, const Exchange& exchange, int n_workers) {
  const int part = n_workers - 1 - static_cast<int>(blockIdx.x);
  if (part >= exchange.n_norms) return;
  const int end = min(row.n_in, (part + 1) * row.norm_width);
  double sum = 0;
#pragma unroll 1
  for (int k = part * row.norm_width + static_cast<int>(threadIdx.x) % 32; k < end; k += 32) {
    const double x = coordinate(row.x, k);
    sum += x * x;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0)
    exchange.tell(exchange.norm(part), 0, static_cast<uint64_t>(__double_as_longlong(sum)));
}

__device__ inline float2 diagonal_of(const float* diagonal, int pair, int64_t rank) {
  const int64_t j = 2 * int64_t{pair};
  return {j < rank ? diagonal[j] : 0.0f, j + 1 < rank ? diagonal[j + 1] : 0.0f};
}

// A thread's or a warp's part of 2 c.h - c.c - c.(D c), D the diagonal of E, of c.c and of ||x||^2.
struct Terms {
  double explained, inside, all;

  // The part of the excess, see Gauge.
  __device__ double excess(const Gauge& gauge) const {
    return gauge.norm_weight * all + gauge.deviation * inside - explained;
  }
};

// Receives all products and leaves them, rounded to coordinates, in shared memory, with zeros up to
// a whole unit of the image's depth. diagonal: of the thread's first pair.
__device__ inline Terms receive_coordinates(const Gauge& gauge, const Exchange& exchange, int rank,
                                            float2 diagonal, int n_places,
                                            __nv_bfloat162* coordinates) {
  Terms terms{};
  const auto take = [&](uint32_t product, float d) {
    const float h = __uint_as_float(product);
    const __nv_bfloat16 rounded = __float2bfloat16_rn(h);
    const double c = __bfloat162float(rounded);
    terms.explained += c * (2 * double{h} - c - c * d);
    terms.inside += c * c;
    return rounded;
  };
#pragma unroll 1
  for (int pair = static_cast<int>(threadIdx.x); pair < n_places / 2; pair += kGateThreads) {
    if (pair >= exchange.n_pairs) {
      coordinates[pair] = __nv_bfloat162(0.0f, 0.0f);
      continue;
    }
    if (pair >= kGateThreads) diagonal = diagonal_of(gauge.diagonal, pair, rank);
    const GateMessage message = exchange.receive(pair);
    const __nv_bfloat16 low = take(message.small, diagonal.x);
    const __nv_bfloat16 high = take(static_cast<uint32_t>(message.large), diagonal.y);
    coordinates[pair] = __nv_bfloat162(low, high);
  }
  return terms;
}

// The part of ||x||^2 that this thread receives: those behind the ones that receive pairs, as far
// as there are such.
__device__ inline double receive_norm(const Exchange& exchange) {
  const int first = exchange.n_pairs < kGateThreads ? exchange.n_pairs : 0;
  const int part = static_cast<int>(threadIdx.x) - first;
  if (part < 0 || part >= exchange.n_norms) return 0;
  return __longlong_as_double(static_cast<long long>(exchange.receive(exchange.norm(part)).large));
}

__device__ inline void add_lanes(double& value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
}
// A warp's sum, for total_excess() behind a barrier.
__device__ inline void add_excess(double excess, double* warps) {
  add_lanes(excess);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = excess;
}
__device__ inline double total_excess(const double* warps) {
  double sum = 0;
#pragma unroll
  for (int w = 0; w < kGateWarps; ++w) sum += warps[w];
  return sum;
}

}  // namespace sluice::impl::cuda::subspace
