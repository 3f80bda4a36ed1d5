// Products with weights stored by columns, for rows that are mostly exact zeros.

#pragma once

#include <memory>

#include "backend/backend.h"

namespace sluice::impl::cpu::gemm {

std::unique_ptr<ColumnWeights> pack_columns(MatrixSource source, DType dtype);
void linear_columns(const LinearColumnsArgs& args);

}  // namespace sluice::impl::cpu::gemm
