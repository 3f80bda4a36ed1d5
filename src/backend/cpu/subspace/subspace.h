// The subspace a linear layer's inputs lie near: projection, residual, image of the weights.

#pragma once

#include <memory>

#include "backend/backend.h"

namespace sluice::impl::cpu::subspace {

std::unique_ptr<SubspaceBasis> make_basis(std::span<const float> vectors, int64_t rank,
                                          int64_t n_in, DType dtype);
void project(const ProjectArgs& args);

// W V, read like any matrix: rows of W are multiplied in float32 as they are asked for. Refers to
// both arguments.
MatrixSource image_source(const MatrixSource& source, const SubspaceBasis& basis);

}  // namespace sluice::impl::cpu::subspace
