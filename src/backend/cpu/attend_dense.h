#pragma once

#include "backend/backend.h"

namespace sluice::cpu {

void attend_dense(const AttendDenseArgs& args);

}  // namespace sluice::cpu
