// Rotary position embedding of queries and keys: by a kernel of its own, or fused into kernels that
// read them.

#pragma once

#include "backend/cuda/primitives/element.cuh"

namespace sluice::impl::cuda {

struct RotatedPair {
  float left, right;
};
// The same roundings wherever it is done.
__device__ inline RotatedPair rotate_pair(float left, float right, float cosine, float sine) {
  return {__fmaf_rn(left, cosine, -__fmul_rn(right, sine)),
          __fmaf_rn(right, cosine, __fmul_rn(left, sine))};
}

// The rotation of a head: its first 2 * half columns, a multiple of 8. The columns of a pair are
// neighbours or, where half is a multiple of 8 too, half apart.
struct Rotation {
  const float* cosine;  // (n_positions, half), and so sine
  const float* sine;
  int half;  // 0: not at all
  bool halves;
};

__device__ inline uint4 narrow_eight(const float (&x)[8]) {
  return make_uint4(narrowed(x[0], x[1]), narrowed(x[2], x[3]), narrowed(x[4], x[5]),
                    narrowed(x[6], x[7]));
}

// Columns [column, column + 8) of a head, rotated and rounded to bf16.
__device__ inline uint4 read_rotated(const std::byte* head, int column, const Rotation& rotation,
                                     int64_t position) {
  const uint4 bits = *reinterpret_cast<const uint4*>(head + 2 * column);
  if (column >= 2 * rotation.half) return bits;
  float x[8];
  widen_eight(bits, x);
  const bool is_left = column < rotation.half;
  const int64_t angle = position * rotation.half + (!rotation.halves ? column / 2
                                                    : is_left        ? column
                                                                     : column - rotation.half);
  const auto four = [&](const float* from, int i) {
    return *reinterpret_cast<const float4*>(from + angle + 4 * i);
  };
  if (!rotation.halves) {
    const float4 c = four(rotation.cosine, 0), s = four(rotation.sine, 0);
    const float cosines[4] = {c.x, c.y, c.z, c.w}, sines[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const RotatedPair pair = rotate_pair(x[2 * i], x[2 * i + 1], cosines[i], sines[i]);
      x[2 * i] = pair.left;
      x[2 * i + 1] = pair.right;
    }
    return narrow_eight(x);
  }
  float other[8];
  widen_eight(*reinterpret_cast<const uint4*>(
                  head + 2 * (is_left ? column + rotation.half : column - rotation.half)),
              other);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const float4 c = four(rotation.cosine, part), s = four(rotation.sine, part);
    const float cosines[4] = {c.x, c.y, c.z, c.w}, sines[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = 4 * part + i;
      x[k] = is_left ? rotate_pair(x[k], other[k], cosines[i], sines[i]).left
                     : rotate_pair(other[k], x[k], cosines[i], sines[i]).right;
    }
  }
  return narrow_eight(x);
}

}  // namespace sluice::impl::cuda
