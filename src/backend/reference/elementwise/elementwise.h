// Operations on elements and rows as plain loops.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::reference::elementwise {

void norm(const NormArgs& args);
void norm_heads(const HeadNormArgs& args);
void rotate(const RotaryArgs& args);
void glu(const GluArgs& args);
void convert(ConstTensor from, Tensor to);
void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to);
void soft_cap(float cap, Tensor x);
void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to);

}  // namespace sluice::impl::reference::elementwise
