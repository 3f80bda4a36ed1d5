// Matrix products and table look-ups as plain loops.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::reference::linear {

struct Weights final : LinearWeights {
  Weights(const MatrixSource& source, DType dtype);
  Buffer rows;              // (n_out, n_in) compute dtype
  std::vector<float> bias;  // (n_out), or empty
};

struct Rows final : Table {
  explicit Rows(MatrixSource matrix) : source(std::move(matrix)) {}
  MatrixSource source;
};

void linear(const LinearArgs& args);
void embed(const EmbedArgs& args);

}  // namespace sluice::impl::reference::linear
