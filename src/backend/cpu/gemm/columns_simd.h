// SIMD kernels under products that read whole vectors of a matrix one after another: columns of a
// weight matrix (gemm/columns.h), directions of a basis (subspace/subspace.h). Vectors are padded
// with zeros to whole cache lines, so a kernel has no tail and a sum does not depend on where a
// slice begins. In bf16 the two halves of a line are interleaved: a vector of 32-bit words, shifted
// and masked, is then two vectors of neighbouring f32 numbers, whatever the length of a vector.

#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::gemm {

constexpr int64_t kLineBytes = 64;
template <typename T>
constexpr int64_t kLineElements = kLineBytes / static_cast<int64_t>(sizeof(T));
inline int64_t padded_to_line(int64_t n, DType dtype) {
  const int64_t elements = kLineBytes / element_bytes(dtype);
  return (n + elements - 1) / elements * elements;
}
// From one vector to the next. The same elements of vectors read side by side would, at lengths of
// many factors of two, share cache sets: there an odd number of lines keeps them apart.
inline int64_t vector_stride(int64_t n, DType dtype) {
  const int64_t elements = kLineBytes / element_bytes(dtype);
  const int64_t lines = padded_to_line(n, dtype) / elements;
  return (lines % 16 == 0 ? lines + 1 : lines) * elements;
}
// Where element i of a vector stands.
template <typename T>
constexpr int64_t stored_at(int64_t i) {
  constexpr int64_t kLine = kLineElements<T>, kHalf = kLine / 2;
  if constexpr (sizeof(T) == 4) return i;
  return i / kLine * kLine + i % kHalf * 2 + i % kLine / kHalf;
}

// As many vectors as are read side by side: each is a stream of its own from memory.
constexpr int64_t kMaxVectors = 8;

// Up to kMaxVectors vectors of n elements. Fetching ahead in software was slower, near or far.
template <typename T>
struct VectorsArgs {
  const T* const* vectors;
  int64_t count;
  int64_t n;  // whole lines
};

// sums[i] += sum over j of weights[j] * vectors[j][i].
void mix_vectors(const VectorsArgs<float>& args, const float* weights, float* sums);
void mix_vectors(const VectorsArgs<BFloat16>& args, const BFloat16* weights, float* sums);

// dots[j] = sum over i of vectors[j][i] * x[i], x stored as a vector is. Products are added in
// float32 within kDotLines lines, and what these make in float64: rounding errors stay those of
// short sums however long the vectors are.
constexpr int64_t kDotLines = 4;
void dot_vectors(const VectorsArgs<float>& args, const float* x, double* dots);
void dot_vectors(const VectorsArgs<BFloat16>& args, const BFloat16* x, double* dots);

// The same on instructions for bf16, or nullptr in a build without them; to be called only where
// kernel_bfmmla() tells that the CPU has them.
using MixFunction = void (*)(const VectorsArgs<BFloat16>&, const BFloat16* weights, float* sums);
using DotFunction = void (*)(const VectorsArgs<BFloat16>&, const BFloat16* x, double* dots);
MixFunction native_mix();
DotFunction native_dot();

// Squared norm of x, summed in float64. n: whole lines.
double squared_norm(const float* x, int64_t n);
// That of x less the sum of `count` parts.
double squared_distance(const float* x, const float* parts, int64_t stride, int64_t count,
                        int64_t n);

}  // namespace sluice::impl::cpu::gemm
