// Devices and number formats, from the public names to the library's own.

#pragma once

#include <memory>
#include <optional>

#include "backend/backend.h"
#include "sluice/model.h"

namespace sluice::impl::api {

// Throws Error for a value that is none of the names.
DType dtype_of(sluice::DType dtype);

// Throws Error for a device that is not there. process: of make_cuda_backend_for().
std::unique_ptr<Backend> make_backend(sluice::Device device, sluice::DType dtype, int process = 0);

// Nothing for weights as they are stored. Throws Error for a value that is none of the names.
std::optional<DType> weight_type(sluice::Weights weights);

}  // namespace sluice::impl::api
