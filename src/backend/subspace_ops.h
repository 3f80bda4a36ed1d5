// Gated subspace and graded linear layers: what they ask of a backend. docs/algorithm.md,
// section 4.

#pragma once

#include <memory>

#include "backend/core_ops.h"
#include "backend/subspace.h"

namespace sluice::impl {

// out = activation(x W^T + bias), or out += x W^T + bias, from weights stored by columns: for one
// or a few rows that are mostly exact zeros: the columns of zeros are not read.
struct LinearColumnsArgs {
  const ColumnWeights* weights;
  ConstTensor x;  // (n_rows, n_in) compute dtype
  Activation activation = Activation::kNone;
  bool accumulate = false;  // with f32 out and no activation
  Tensor out;               // (n_rows, n_out) f32 or compute dtype
};

class SubspaceOps {
 public:
  virtual ~SubspaceOps() = default;
  virtual std::unique_ptr<ColumnWeights> pack_columns(MatrixSource source) = 0;
  // vectors: (rank, n_in), orthonormal rows, host memory.
  virtual std::unique_ptr<SubspaceBasis> make_basis(std::span<const float> vectors, int64_t rank,
                                                    int64_t n_in) = 0;
  // The image W V (n_out, rank) of a matrix (n_out, n_in), with its bias, for linear() on
  // coordinates; V as the basis keeps it.
  virtual std::unique_ptr<LinearWeights> pack_image(const MatrixSource& source,
                                                    const SubspaceBasis& basis) = 0;
  virtual void project(const ProjectArgs& args) = 0;
  virtual void grade(const GradeArgs& args) = 0;
  virtual void linear_columns(const LinearColumnsArgs& args) = 0;
};

}  // namespace sluice::impl
