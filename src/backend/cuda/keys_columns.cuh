// Columns of keys and values, as those who find clusters' means share them out, and how they read
// them.

#pragma once

#include "backend/cuda/element.cuh"
#include "backend/cuda/keys_kernels.h"
#include "backend/cuda/mma.cuh"

namespace sluice::cuda {

constexpr int kColumnThreads = 128;  // of a block

// kN columns of one head, of keys or of values; `flat` counts them, keys before values.
struct Columns {
  int64_t flat;
  bool values;
  int64_t head, column;
};
__device__ inline Columns columns_at(int64_t flat, int64_t width, int64_t head_dim) {
  const bool values = flat >= width;
  const int64_t at = values ? flat - width : flat;
  return {flat, values, at / head_dim, at % head_dim};
}

// The rest that rounding a cluster's mean left: row of (n_kv_heads, capacity, head_dim).
__device__ inline RowsView rests_of(const ClusterRows& rows, bool values, int64_t head_dim) {
  uint16_t* rests = values ? rows.values_rest : rows.keys_rest;
  return {reinterpret_cast<std::byte*>(rests), head_dim, true};
}

// Rows on their way to the threads that asked for them, kN columns each: every thread has its own
// part, so nobody waits for another.
template <int kN, bool kBF16>
struct Coming {
  static constexpr int kRows = 8;
  static constexpr int kParts = kBF16 ? 1 : 2;  // of 16 bytes
  uint4 rows[kRows][kParts][kColumnThreads];

  // One row at a time, or, where `from` is null, none.
  __device__ void ask(int i, const std::byte* from) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      if (from != nullptr) copy_async(&rows[i % kRows][part][threadIdx.x], from + 16 * part, true);
    commit_copies();
  }
  // The i-th row, after kRows - 1 more were asked for.
  __device__ void take(int i, float (&x)[kN]) {
    wait_copies<kRows - 1>();
    if constexpr (kBF16) {
      widen_eight(rows[i % kRows][0][threadIdx.x], x);
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint4 four = rows[i % kRows][part][threadIdx.x];
        x[4 * part] = __uint_as_float(four.x);
        x[4 * part + 1] = __uint_as_float(four.y);
        x[4 * part + 2] = __uint_as_float(four.z);
        x[4 * part + 3] = __uint_as_float(four.w);
      }
    }
  }
};

// Calls take(i, x) with kN columns of row_at(i), i from begin up to end; with anything where that
// is null.
template <int kN, bool kBF16, typename RowAt, typename Take>
__device__ void read_rows(int begin, int end, int64_t column, const RowAt& row_at,
                          const Take& take) {
  float x[kN] = {};
  if constexpr (kN == 1) {
    for (int i = begin; i < end; ++i) {
      const std::byte* from = row_at(i);
      if (from != nullptr) load<kN>(ConstRowsView{from, 0, kBF16}, 0, column, x);
      take(i, x);
    }
  } else {
    using Rows = Coming<kN, kBF16>;
    __shared__ Rows coming;
    const auto ask = [&](int i) {
      const std::byte* from = i < end ? row_at(i) : nullptr;
      coming.ask(i, from == nullptr ? nullptr : from + column * (kBF16 ? 2 : 4));
    };
    for (int i = begin; i < begin + Rows::kRows; ++i) ask(i);
    for (int i = begin; i < end; ++i) {
      coming.take(i, x);
      ask(i + Rows::kRows);
      take(i, x);
    }
  }
}

}  // namespace sluice::cuda
