// Columns of keys and values, as those who find clusters' means share them out.

#pragma once

#include "backend/cuda/element.cuh"
#include "backend/cuda/keys_kernels.h"

namespace sluice::cuda {

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

}  // namespace sluice::cuda
