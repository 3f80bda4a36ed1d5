// SIMD kernels on rows of scores, and of the keys and values they weigh.

#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::primitives {

// One step of online softmax on a row of raw scores, scale > 0: x = exp(x * scale - new maximum),
// where the new maximum covers the row and `maximum`. Returns the factor for earlier sums and
// updates maximum and total. A row of -inf alone leaves everything as it was and becomes zeros.
//
// counts (n), finite: how many equal scores each one stands for; null for ones. exp(x + log m) is
// m * exp(x), so no logarithm is needed, and the maximum need not know of it.
struct SoftmaxState {
  float maximum;
  float total;
  float log_sum() const { return maximum + std::log(total); }
};
float softmax_step(float scale, int64_t n, float* x, SoftmaxState& state,
                   const float* counts = nullptr);

// log(sum(exp(x))), without overflow.
float log_sum_exp(const float* x, int64_t n);

// out[j] = dot(q, keys + j * stride), for n rows of d.
void dot_rows(const float* q, const float* keys, int64_t stride, int64_t n, int64_t d, float* out);
void dot_rows(const float* q, const BFloat16* keys, int64_t stride, int64_t n, int64_t d,
              float* out);
// out += sum_j weights[j] * (values + j * stride).
void mix_rows(const float* weights, const float* values, int64_t stride, int64_t n, int64_t d,
              float* out);
void mix_rows(const float* weights, const BFloat16* values, int64_t stride, int64_t n, int64_t d,
              float* out);

}  // namespace sluice::impl::cpu::primitives
