// Single elements in device code: rows of either dtype, activations, and sums over a block.

#pragma once

#include <cuda_bf16.h>

#include "backend/backend.h"

namespace sluice::impl::cuda {

// A tensor's rows as kernels take them. The dtype is known at run time: a branch without divergence
// costs nothing in a kernel that is bound by memory.
struct RowsView {
  std::byte* data;
  int64_t stride;  // in elements
  bool bf16;
};
struct ConstRowsView {
  const std::byte* data;
  int64_t stride;
  bool bf16;
};

inline RowsView view_of(const Tensor& x) {
  return {x.bytes(), x.row_stride(), x.dtype() == DType::kBF16};
}
inline ConstRowsView view_of(const ConstTensor& x) {
  return {x.bytes(), x.row_stride(), x.dtype() == DType::kBF16};
}

// One row of f32.
__host__ __device__ inline ConstRowsView vector_view(const float* values) {
  return {reinterpret_cast<const std::byte*>(values), 0, false};
}

// Whether rows can be read 8 elements at a time, each aligned to 16 bytes.
template <bool kConst>
bool by_eights(const BasicTensor<kConst>& x) {
  const int64_t unit = 16 / element_bytes(x.dtype());
  return reinterpret_cast<uintptr_t>(x.bytes()) % 16 == 0 && x.row_elements() % 8 == 0 &&
         (x.rows() <= 1 || x.row_stride() % unit == 0);
}

__device__ inline float2 widened(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ inline uint32_t narrowed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline void widen_eight(const uint4& bits, float (&to)[8]) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widened(words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

// Four numbers that are f32 already.
__device__ inline void widen_four(const uint4& bits, float* to) {
  to[0] = __uint_as_float(bits.x);
  to[1] = __uint_as_float(bits.y);
  to[2] = __uint_as_float(bits.z);
  to[3] = __uint_as_float(bits.w);
}

__device__ inline uint4 narrowed_eight(const float (&from)[8]) {
  return make_uint4(narrowed(from[0], from[1]), narrowed(from[2], from[3]),
                    narrowed(from[4], from[5]), narrowed(from[6], from[7]));
}

// Elements [column, column + kN) of a row; kN is 1 or 8.
template <int kN>
__device__ void load(const ConstRowsView& x, int64_t row, int64_t column, float (&to)[kN]) {
  const int64_t at = row * x.stride + column;
  if constexpr (kN == 1) {
    to[0] = x.bf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(x.data)[at])
                   : reinterpret_cast<const float*>(x.data)[at];
  } else if (x.bf16) {
    widen_eight(*reinterpret_cast<const uint4*>(x.data + 2 * at), to);
  } else {
    for (int i = 0; i < 2; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(x.data + 4 * (at + 4 * i));
      to[4 * i] = four.x;
      to[4 * i + 1] = four.y;
      to[4 * i + 2] = four.z;
      to[4 * i + 3] = four.w;
    }
  }
}
template <int kN>
__device__ void load(const RowsView& x, int64_t row, int64_t column, float (&to)[kN]) {
  load(ConstRowsView{x.data, x.stride, x.bf16}, row, column, to);
}

template <int kN>
__device__ void store(const RowsView& x, int64_t row, int64_t column, const float (&from)[kN]) {
  const int64_t at = row * x.stride + column;
  if constexpr (kN == 1) {
    if (x.bf16)
      reinterpret_cast<__nv_bfloat16*>(x.data)[at] = __float2bfloat16_rn(from[0]);
    else
      reinterpret_cast<float*>(x.data)[at] = from[0];
  } else if (x.bf16) {
    *reinterpret_cast<uint4*>(x.data + 2 * at) = narrowed_eight(from);
  } else {
    for (int i = 0; i < 2; ++i)
      *reinterpret_cast<float4*>(x.data + 4 * (at + 4 * i)) =
          make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]);
  }
}

// No approximate functions: results in f32 are compared with the reference's.
__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x > 0 ? x : 0.0f;
    case Activation::kGeluErf:
      return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case Activation::kSilu:
      return x / (1 + expf(-x));
  }
  return x;
}

// The sum over a block of whole warps, in every thread. `shared`: one place per warp. kBlock: its
// threads, where the compiler may know them.
template <int kBlock = 0, typename T>
__device__ T block_sum(T value, T* shared) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int n_warps = (kBlock > 0 ? kBlock : static_cast<int>(blockDim.x)) / 32;
  __syncthreads();  // whoever reads the last sum is done
  if (threadIdx.x % 32 == 0) shared[warp] = value;
  __syncthreads();
  T sum = 0;
  for (int i = 0; i < n_warps; ++i) sum += shared[i];
  return sum;
}

}  // namespace sluice::impl::cuda
