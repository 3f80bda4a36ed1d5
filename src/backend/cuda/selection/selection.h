// Selection of representative tokens on the device. docs/algorithm.md, section 2.

#pragma once

#include <memory>

#include "backend/attend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::selection {

std::unique_ptr<Selector> make_selector(std::shared_ptr<Context> context, const SelectorSpec& spec);

}  // namespace sluice::impl::cuda::selection
