// SIMD kernels on one row of f32 numbers (and its conversion from and to bf16). Plain pointers:
// the callers in this folder have checked every size.

#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace sluice::impl::cpu::primitives {

void widen(const BFloat16* from, int64_t n, float* to);
void narrow(const float* from, int64_t n, BFloat16* to);

// x = activation(x + bias); bias may be null.
void bias_activate(const float* bias, Activation activation, int64_t n, float* x);
void add(const float* from, int64_t n, float* to);
// to += factor * from.
void add_multiple(float factor, const float* from, int64_t n, float* to);
void scale(float factor, int64_t n, float* x);
// x = cap * tanh(x / cap), cap > 0.
void soft_cap(float cap, int64_t n, float* x);

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

// The instruction set in use.
const char* simd_name();

}  // namespace sluice::impl::cpu::primitives
