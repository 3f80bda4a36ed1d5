// Stands in for linear_onednn.cpp in builds without oneDNN.

#include "backend/cpu/linear.h"

namespace sluice::cpu {

std::unique_ptr<CpuLinear> make_onednn_linear(const MatrixSource&, DType) { return nullptr; }

}  // namespace sluice::cpu
