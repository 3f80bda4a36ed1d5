// SIMD kernels on one row of f32 numbers (and its conversion from and to bf16). Plain pointers:
// the callers in this folder have checked every size.

#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace sluice::cpu {

void widen(const BFloat16* from, int64_t n, float* to);
void narrow(const float* from, int64_t n, BFloat16* to);

// x = activation(x + bias); bias may be null.
void bias_activate(const float* bias, Activation activation, int64_t n, float* x);
void add(const float* from, int64_t n, float* to);
void scale(float factor, int64_t n, float* x);

struct NormRowArgs {
  NormKind kind;
  float epsilon;
  const float* x;
  const float* weight;  // or null
  const float* bias;    // or null
  int64_t n;
  float* out;
};
void norm_row(const NormRowArgs& args);

// out = activation(gate) * up.
void gate_row(Activation activation, const float* gate, const float* up, int64_t n, float* out);

// Rotates the first 2 * half numbers of one head.
void rotate_head(RotaryStyle style, const float* cosine, const float* sine, int64_t half, float* x);

// One step of online softmax on a row of raw scores, scale > 0: x = exp(x * scale - new maximum),
// where the new maximum covers the row and `maximum`. Returns the factor for earlier sums and
// updates maximum and total. A row of -inf alone leaves everything as it was and becomes zeros.
struct SoftmaxState {
  float maximum;
  float total;
};
float softmax_step(float scale, int64_t n, float* x, SoftmaxState& state);

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

const char* simd_name();

}  // namespace sluice::cpu
