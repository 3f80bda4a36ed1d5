// Columns of keys and values, as those who find clusters' means share them out, and how they read
// them.

#pragma once

#include "backend/cuda/attention/keys/kernels.h"
#include "backend/cuda/attention/keys/rows.cuh"
#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/primitives/mma.cuh"

namespace sluice::impl::cuda::keys {

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

// Where the row of a token is: those of this pass count from 0, those of earlier ones from -1 down.
__device__ inline int32_t row_code(const TokenRows& tokens, int64_t position) {
  return static_cast<int32_t>(position >= tokens.first ? position - tokens.first
                                                       : -1 - (position - tokens.base));
}

// Rows of one head from a column on. Threads that pass by many of them have little else to do than
// to find them, so that is made short.
template <bool kBF16>
struct ColumnRows {
  const std::byte *recent, *old;
  uint32_t recent_bytes, old_bytes;  // from row to row

  __device__ ColumnRows(const TokenRows& tokens, const Columns& at, int64_t head_dim) {
    constexpr int64_t kBytes = kBF16 ? 2 : 4;
    const HeadRows rows = token_rows(tokens, at.values, at.head, head_dim, kBytes);
    recent = rows.recent + at.column * kBytes;
    old = rows.old + at.column * kBytes;
    recent_bytes = static_cast<uint32_t>(rows.recent_bytes);
    old_bytes = static_cast<uint32_t>(rows.row_bytes);
    // They are to be kept, not found again for every row.
    asm volatile("" : "+l"(recent), "+l"(old), "+r"(recent_bytes), "+r"(old_bytes));
  }
  __device__ const std::byte* row(int32_t code) const {
    const bool is_recent = code >= 0;
    const auto i = static_cast<uint32_t>(is_recent ? code : -1 - code);
    return (is_recent ? recent : old) + uint64_t{i} * (is_recent ? recent_bytes : old_bytes);
  }
};

// Rows that are copied to shared memory for the threads that asked for them, kN columns each. Every
// thread has its own part, so no thread waits for another.
template <int kN, bool kBF16>
struct Coming {
  static constexpr unsigned kRows = 8;
  static constexpr int kParts = kBF16 ? 1 : 2;  // of 16 bytes
  uint4 rows[kRows][kParts][kColumnThreads];

  // One row at a time, or none.
  __device__ void ask(unsigned i, const std::byte* from, bool needed) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      if (needed) copy_async(&rows[i % kRows][part][threadIdx.x], from + 16 * part, true);
    commit_copies();
  }
  // The i-th row, after kRows - 1 more were asked for.
  __device__ void take(unsigned i, float (&x)[kN]) {
    wait_copies<kRows - 1>();
    if constexpr (kBF16) {
      widen_eight(rows[i % kRows][0][threadIdx.x], x);
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        widen_four(rows[i % kRows][part][threadIdx.x], x + 4 * part);
    }
  }
};

// Calls take(i, x) with kN columns of the row of code_at(i), i from begin up to end; with anything
// where it is not needed_at(i).
template <int kN, bool kBF16, typename CodeAt, typename NeededAt, typename Take>
__device__ void read_rows(int begin, int end, const ColumnRows<kBF16>& rows, const CodeAt& code_at,
                          const NeededAt& needed_at, const Take& take) {
  float x[kN] = {};
  if constexpr (kN == 1) {
    for (int i = begin; i < end; ++i) {
      if (needed_at(i)) load<kN>(ConstRowsView{rows.row(code_at(i)), 0, kBF16}, 0, 0, x);
      take(i, x);
    }
  } else {
    using Rows = Coming<kN, kBF16>;
    __shared__ Rows coming;
    if (begin >= end) return;
    const auto ask = [&](int i) {
      const int at = min(i, end - 1);
      const bool needed = needed_at(at) && i < end;
      coming.ask(static_cast<unsigned>(i), rows.row(code_at(at)), needed);
    };
    constexpr int kAhead = Rows::kRows;
#pragma unroll 1
    for (int i = begin; i < begin + kAhead; ++i) ask(i);
    for (int i = begin; i < end; ++i) {
      coming.take(static_cast<unsigned>(i), x);
      ask(i + kAhead);
      take(i, x);
    }
  }
}

}  // namespace sluice::impl::cuda::keys
