// Single values: reading, writing and activations.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::reference {

// Element (row, column) of a tensor, its inner axes taken as one.
float load(const ConstTensor& x, int64_t row, int64_t column);
// Without a conversion of the view, which takes longer than the rest.
float load(const Tensor& x, int64_t row, int64_t column);
void store(const Tensor& x, int64_t row, int64_t column, float value);

float activate(Activation activation, float x);

}  // namespace sluice::impl::reference
