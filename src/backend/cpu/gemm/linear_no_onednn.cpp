// Stands in for gemm/linear_onednn.cpp in builds without oneDNN.

#include "backend/cpu/gemm/linear.h"

namespace sluice::impl::cpu::gemm {

std::unique_ptr<Linear> make_onednn_linear(const MatrixSource&, DType) { return nullptr; }

}  // namespace sluice::impl::cpu::gemm
