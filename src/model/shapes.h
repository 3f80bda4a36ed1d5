// What plans must fit, from a model's description alone.

#pragma once

#include "model/spec.h"
#include "plan/linear_plan.h"

namespace sluice::impl {

LinearShape linear_shape_of(const ModelSpec& spec);

}  // namespace sluice::impl
