// The kernels behind subspace/subspace.h.

#pragma once

#include "backend/backend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::subspace {

// residuals[row] = ||x - y|| / ||x|| as section 4 defines it; y (n_rows, n_in) f32.
void residual_rows(Context& context, ConstTensor x, ConstTensor y, float* residuals);

// What a gate has written down of a row.
struct GateEntry {
  double all, rest;  // ||x||^2 and ||x - V c||^2
  bool fast, passed_by;
  bool settled;  // else `rest` lacks the off-diagonal part of E
};

// What one block of a gate tells the others of a row, whose number it holds.
struct alignas(16) GateMessage {
  uint32_t row, small;
  uint64_t large;
};
// What the blocks share from row to row. Numbers of rows begin with 1.
struct GateMemory {
  GateMessage* messages;  // (gate_messages)
  uint32_t* n_rows;       // so far
  GateEntry* entries;     // (RowGate::kRoom) of the last rows, a ring
  Tensor coordinates;     // (RowGate::kRoom, rank rounded up to eights) theirs, zeros behind
};

int64_t gate_messages(const Context& context, int64_t rank);
// Whether a block's part of such a basis fits shared memory; on Hopper, twice, for two blocks per
// multiprocessor.
bool fits_gate(int64_t n_in, int64_t rank);
// Contexts whose gates may run side by side: more could wait for each other for ever.
int gate_places(const Context& context);

// The decision on one row of bf16 and the product that follows from it. Rows of matrices and x are
// aligned to 16 bytes.
struct GateRowArgs {
  ConstTensor vectors;    // (rank, n_in)
  const float* diagonal;  // (rank) of E = V^T V - 1
  ConstTensor overlaps;   // (rank, rank) bf16: twice E below the diagonal
  double deviation,
      rounding;  // no less than the norms of E's off-diagonal part and of its rounding
  double epsilon;
  BypassLimits limits;
  Bypass* state;
  GateMemory memory;
  ConstTensor image, dense;  // (n_out, rank) and (n_out, n_in), columns padded
  ConstTensor x;             // (1, n_in)
  const float* bias;
  Activation activation;
  bool accumulate;
  Tensor out;  // (1, n_out)
};
void run_gate(Context& context, const GateRowArgs& args);

// Entries as decisions, with what they lack of E.
struct ResidualsArgs {
  const GateEntry* entries;  // (n)
  ConstTensor coordinates;   // (n, rank rounded up)
  ConstTensor overlaps;
  RowDecision* decisions;  // (n)
};
void settle_residuals(Context& context, const ResidualsArgs& args);

// gram (rank, rank) f32 = V^T V -> what GateRowArgs says of E. The off-diagonal
// part of E stays in gram.
void split_deviation(Context& context, Tensor gram, float* diagonal, Tensor overlaps);
void sum_squares(Context& context, ConstTensor x, double* sum);

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

// One row of bf16 for a graded product: what it keeps, all of it where that is more than most_kept.
struct GradeRowArgs {
  ConstTensor x;  // (1, n_in)
  double squared_epsilon;
  double most_kept, most_columns;
  Tensor graded;  // (1, n_in) like x, zero where left out
  NonZeros list;
  int32_t* by_columns;     // 1: no more than most_columns are kept
  RowDecision* decisions;  // (RowGate::kRoom) of the last rows, a ring
  uint32_t* n_rows;        // so far
  uint64_t* keys;          // (n_keys) scratch, a power of two that is no less than n_in
  int64_t n_keys;
};
void grade_row(Context& context, const GradeRowArgs& args);

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
  const int32_t* wanted = nullptr;  // nothing is done where this is 0
};
void multiply_columns(Context& context, const ColumnsProduct& args);
int64_t column_splits(const Context& context, int64_t n_out);

}  // namespace sluice::impl::cuda::subspace
