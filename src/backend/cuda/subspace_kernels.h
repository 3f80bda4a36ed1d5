// The kernels behind subspace.h.

#pragma once

#include "backend/backend.h"
#include "backend/cuda/device.h"

namespace sluice::cuda {

// residuals[row] = ||x - y|| / ||x|| as section 4 defines it; y (n_rows, n_in) f32.
void residual_rows(Context& context, ConstTensor x, ConstTensor y, float* residuals);

// What a row leaves out: elements whose magnitude, as the bits of an f32, is below `bits`, and the
// first n_ties of those that have it.
struct RowCut {
  uint32_t bits;
  int32_t n_ties;
  int32_t n_kept;
  int32_t unsure;  // sums in another order could decide otherwise
};
constexpr uint32_t kAboveAll = 0x7f800001u;  // NaN counts as infinite, the largest there is

// squared_epsilon * (energy of the row) may be left out.
void find_cuts(Context& context, ConstTensor x, double squared_epsilon, RowCut* cuts);
// Rows that are not unsure.
void apply_cuts(Context& context, ConstTensor x, const RowCut* cuts, Tensor graded);

// The elements of each row that are not zero, in order.
struct NonZeros {
  int32_t* columns;  // (n_rows, n_in)
  float* values;     // (n_rows, n_in)
  int32_t* counts;   // (n_rows)
};
void find_nonzeros(Context& context, ConstTensor x, const NonZeros& to);

// partial (n_rows, n_splits, columns.row_elements() padded) += values times columns; the finished
// sum of the splits goes through bias and activation to out.
struct ColumnsProduct {
  ConstTensor columns;  // (n_in, n_out rounded up to eights)
  NonZeros x;
  int64_t n_splits;
  float* partial;
  const float* bias;
  Activation activation;
  bool accumulate;
  Tensor out;
};
void multiply_columns(Context& context, const ColumnsProduct& args);
int64_t column_splits(const Context& context, int64_t n_out);

}  // namespace sluice::cuda
