// Activations of a backend as plain numbers.

#pragma once

#include <vector>

#include "backend/backend.h"

namespace sluice::impl {

// Rows of a tensor of f32 or bf16 as float32 in host memory, (n_rows, row_elements).
std::vector<float> host_rows(Backend& backend, const ConstTensor& device);

}  // namespace sluice::impl
