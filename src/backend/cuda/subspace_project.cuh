// The products of a row with the directions of V and its norm, told to all blocks: a block takes
// two directions at a time.

#pragma once

#include "backend/cuda/subspace_exchange.cuh"
#include "backend/cuda/subspace_image.cuh"

namespace sluice::cuda {

constexpr int kChunks = 8;  // of 8 elements of each direction, to a thread at a time
constexpr int64_t kChunkWidth = 8 * kGateThreads;
constexpr int64_t kPass = kChunks * kChunkWidth;
constexpr int kChains = 4;  // of products that do not wait for each other

struct ProjectedRow {
  RowWeights vectors;  // (rank, n_in)
  const std::byte* x;
  const float* diagonal;  // (rank) of E
};

// Shared memory: a pass of x and of two directions, on their way in the background, each thread's
// part to where it reads it itself; then the coordinates.
struct Staged {
  uint4* memory;
  int n;  // (elements of a pass) / 8

  __device__ uint4* x() const { return memory; }               // (n)
  __device__ uint4* directions() const { return memory + n; }  // (n / threads, 2, threads)
  __device__ std::byte* coordinates() const { return reinterpret_cast<std::byte*>(memory + 3 * n); }
};
// Elements of a row that are there at a time, rounded up to chunks.
__host__ __device__ inline int64_t pass_of(int64_t n_in) {
  const int64_t all = (n_in + kChunkWidth - 1) / kChunkWidth * kChunkWidth;
  return all < kPass ? all : kPass;
}
__host__ __device__ inline int64_t staged_bytes(int64_t n_in, int64_t n_coordinates) {
  return 6 * pass_of(n_in) + 2 * n_coordinates;
}

__device__ inline void ask_for_pair(const ProjectedRow& row, int64_t pair, int64_t first,
                                    const Staged& staged) {
  const RowWeights& vectors = row.vectors;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (first + c * kChunkWidth >= row.vectors.depth) break;
    const int64_t k = first + c * kChunkWidth + 8 * int64_t{threadIdx.x};
#pragma unroll
    for (int d = 0; d < 2; ++d) {
      const bool exists = 2 * pair + d < vectors.n_out && k < vectors.depth;
      const int64_t at = exists ? (2 * pair + d) * vectors.stride + k : 0;
      copy_async(staged.directions() + (2 * c + d) * kGateThreads + threadIdx.x,
                 vectors.data + 2 * at, exists);
    }
  }
}
__device__ inline void ask_for_x(const ProjectedRow& row, int64_t first, const Staged& staged) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (first + c * kChunkWidth >= row.vectors.depth) break;
    const int64_t k = first + c * kChunkWidth + 8 * int64_t{threadIdx.x};
    const bool exists = k < row.vectors.depth;
    copy_async(staged.x() + c * kGateThreads + threadIdx.x, row.x + (exists ? 2 * k : 0), exists);
  }
}

// The matrix units take the parts of eight groups of four lanes for rows, those of x for columns:
// where a group meets itself stands its share of the product.
__device__ inline void multiply_pair(const ProjectedRow& row, int64_t first, const Staged& staged,
                                     float (&sums)[kChains][4]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (first + c * kChunkWidth >= row.vectors.depth) break;
    const uint4 a = staged.directions()[2 * c * kGateThreads + threadIdx.x];
    const uint4 b = staged.directions()[(2 * c + 1) * kGateThreads + threadIdx.x];
    const uint4 x = staged.x()[c * kGateThreads + threadIdx.x];
    mma_bf16(sums[2 * c % kChains], {a.x, b.x, a.y, b.y}, x.x, x.y);
    mma_bf16(sums[(2 * c + 1) % kChains], {a.z, b.z, a.w, b.w}, x.z, x.w);
  }
}

// Tells the products with this block's directions. The first pass of them and of x is asked for.
__device__ inline void project(const ProjectedRow& row, const Exchange& exchange,
                               const Staged& staged) {
  __shared__ float parts[kGateWarps][2];
  wait_copies<0>();
  if (static_cast<int>(blockIdx.x) >= exchange.n_pairs) __syncthreads();  // see Exchange
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int pair = static_cast<int>(blockIdx.x); pair < exchange.n_pairs;
       pair += static_cast<int>(gridDim.x)) {
    const bool is_first = pair == static_cast<int>(blockIdx.x);
    float sums[kChains][4] = {};
    for (int64_t first = 0; first < row.vectors.depth; first += kPass) {
      if (!is_first || first > 0) {
        ask_for_pair(row, pair, first, staged);
        ask_for_x(row, first, staged);
        commit_copies();
        wait_copies<0>();
      }
      multiply_pair(row, first, staged, sums);
    }
    const int g = lane / 4;
    float own[2] = {};
    if (lane % 4 == g / 2)
#pragma unroll
      for (int i = 0; i < kChains; ++i) {
        own[0] += g % 2 == 0 ? sums[i][0] : sums[i][1];
        own[1] += g % 2 == 0 ? sums[i][2] : sums[i][3];
      }
    for (int step = 16; step > 0; step /= 2)
      for (float& part : own) part += __shfl_xor_sync(0xffffffffu, part, step);
    if (!is_first) __syncthreads();  // the last parts are read
    if (lane < 2) parts[warp][lane] = lane == 0 ? own[0] : own[1];
    __syncthreads();
    if (warp != 0) continue;
    float products[2] = {};
    for (int w = 0; w < kGateWarps; ++w)
      for (int d = 0; d < 2; ++d) products[d] += parts[w][d];
    exchange.tell(pair, __float_as_uint(products[0]), __float_as_uint(products[1]));
  }
}

// Behind project(). By one warp, in float64: squares of numbers that are fine leave f32's range.
__device__ inline void tell_norm(const ProjectedRow& row, const Exchange& exchange,
                                 const Staged& staged) {
  const int part = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  if (part >= exchange.n_norms) return;
  const int64_t n = row.vectors.depth, end = n * (part + 1) / exchange.n_norms;
  // Whether all of it is in shared memory.
  const bool near = n <= kPass;
  const std::byte* from = near ? reinterpret_cast<const std::byte*>(staged.x()) : row.x;
  double sum = 0;
  for (int64_t k = n * part / exchange.n_norms + threadIdx.x % 32; k < end; k += 32) {
    const double x = coordinate(from, k);
    sum += x * x;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  exchange.tell(exchange.norm(part), 0, __double_as_longlong(sum));
}

__device__ inline float2 diagonal_of(const ProjectedRow& row, int pair) {
  const int64_t j = 2 * int64_t{pair};
  return {j < row.vectors.n_out ? row.diagonal[j] : 0.0f,
          j + 1 < row.vectors.n_out ? row.diagonal[j + 1] : 0.0f};
}

// A thread's part of 2 c.h - c.c - c.(D c), D the diagonal of E, of c.c and of ||x||^2.
struct Terms {
  double explained = 0, inside = 0, all = 0;
};

// All products, rounded to coordinates in shared memory, with zeros up to a whole unit.
__device__ inline Terms hear_coordinates(const ProjectedRow& row, const Exchange& exchange,
                                         float2 diagonal, __nv_bfloat162* coordinates) {
  Terms terms;
  const auto take = [&](float h, float d) {
    const __nv_bfloat16 rounded = __float2bfloat16_rn(h);
    const double c = __bfloat162float(rounded);
    terms.explained += c * (2 * double{h} - c - c * d);
    terms.inside += c * c;
    return rounded;
  };
  const auto whole = static_cast<int>((row.vectors.n_out + kUnitDepth - 1) / kUnitDepth);
  for (int pair = static_cast<int>(threadIdx.x); pair < whole * kUnitDepth / 2;
       pair += kGateThreads) {
    if (pair >= exchange.n_pairs) {
      coordinates[pair] = __nv_bfloat162(0.0f, 0.0f);
      continue;
    }
    if (pair >= kGateThreads) diagonal = diagonal_of(row, pair);
    const GateMessage message = exchange.hear(pair);
    const __nv_bfloat16 low = take(__uint_as_float(message.small), diagonal.x);
    const __nv_bfloat16 high =
        take(__uint_as_float(static_cast<uint32_t>(message.large)), diagonal.y);
    coordinates[pair] = __nv_bfloat162(low, high);
  }
  return terms;
}

// The threads' terms to one of the warp's, where a warp has any.
__device__ inline void add_up(Terms& terms, const Exchange& exchange, Terms* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // Threads behind those that hear of directions hear of the norm.
  const int first = exchange.n_pairs < kGateThreads ? exchange.n_pairs : 0;
  const int part = static_cast<int>(threadIdx.x) - first;
  if (part >= 0 && part < exchange.n_norms)
    terms.all =
        __longlong_as_double(static_cast<long long>(exchange.hear(exchange.norm(part)).large));
  const auto add = [](double& term) {
    for (int step = 16; step > 0; step /= 2) term += __shfl_xor_sync(0xffffffffu, term, step);
  };
  if (32 * warp < exchange.n_pairs) {
    add(terms.explained);
    add(terms.inside);
  }
  if (32 * warp + 31 >= first && 32 * warp < first + exchange.n_norms) add(terms.all);
  if (threadIdx.x % 32 == 0) shared[warp] = terms;
}
__device__ inline Estimate estimate(const Terms* shared) {
  Terms sum;
#pragma unroll
  for (int w = 0; w < kGateWarps; ++w) {
    sum.explained += shared[w].explained;
    sum.inside += shared[w].inside;
    sum.all += shared[w].all;
  }
  return {sum.all, sum.all - sum.explained, sum.inside};
}

}  // namespace sluice::cuda
