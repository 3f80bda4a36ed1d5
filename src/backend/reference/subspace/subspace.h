// Gated subspace and graded linear layers as plain loops, docs/algorithm.md section 4.

#pragma once

#include "backend/reference/linear/linear.h"

namespace sluice::impl::reference::subspace {

struct Columns final : ColumnWeights {
  Columns(const MatrixSource& source, DType dtype);
  linear::Weights weights;
};

struct Basis final : SubspaceBasis {
  Basis(std::span<const float> values, int64_t rank, int64_t n_in, DType dtype);
  Buffer vectors;  // (rank, n_in) compute dtype
};

void project(const ProjectArgs& args);
void grade(const GradeArgs& args);
void linear_columns(const LinearColumnsArgs& args);
std::unique_ptr<LinearWeights> pack_image(const MatrixSource& source, const SubspaceBasis& basis,
                                          DType dtype);

}  // namespace sluice::impl::reference::subspace
