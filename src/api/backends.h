// Devices and number formats, from the public names to the library's own.

#pragma once

#include <memory>

#include "backend/backend.h"
#include "sluice/model.h"

namespace sluice::impl::api {

// Throws Error for a device that is not there.
std::unique_ptr<Backend> make_backend(sluice::Device device, sluice::DType dtype);

}  // namespace sluice::impl::api
