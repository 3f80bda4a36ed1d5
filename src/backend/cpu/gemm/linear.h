// Matrix products of the CPU backend. Two providers answer the same calls: oneDNN, where it has
// kernels for this CPU (x86-64), and our own packed kernels (gemm/gemm.h) elsewhere.

#pragma once

#include <memory>

#include "backend/backend.h"

namespace sluice::impl::cpu::gemm {

class Linear : public LinearWeights {
 public:
  virtual void run(const LinearArgs& args) const = 0;
  virtual const char* provider() const = 0;

 protected:
  using LinearWeights::LinearWeights;
};

std::unique_ptr<Linear> make_packed_linear(MatrixSource source, DType dtype);
// nullptr when this build has no oneDNN, or it no kernel for this dtype on this CPU.
std::unique_ptr<Linear> make_onednn_linear(const MatrixSource& source, DType dtype);
// The faster of the two.
inline std::unique_ptr<Linear> make_plain_linear(MatrixSource source, DType dtype) {
  auto weights = make_onednn_linear(source, dtype);
  return weights != nullptr ? std::move(weights) : make_packed_linear(std::move(source), dtype);
}
// nullptr where no rows are stored in blocks.
std::unique_ptr<Linear> make_block_linear(const MatrixSource& source, DType dtype);
// In blocks where rows are stored so, else in the compute dtype.
inline std::unique_ptr<Linear> make_linear(MatrixSource source, DType dtype) {
  auto weights = make_block_linear(source, dtype);
  return weights != nullptr ? std::move(weights) : make_plain_linear(std::move(source), dtype);
}

// What a product leaves to do on rows of f32 sums: bias, activation, and the store to `out`
// (replacing or adding). Columns [column, column + n) of row `row`; sums may be overwritten.
struct EpilogueArgs {
  const LinearArgs* linear;
  const float* bias;  // of column 0, or null
  int64_t row;
  int64_t column;
  int64_t n;
  float* sums;
};
void finish_row(const EpilogueArgs& args);

}  // namespace sluice::impl::cpu::gemm
