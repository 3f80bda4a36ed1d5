// Exact attention on the CPU, docs/algorithm.md section 3.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::cpu {

void attend_dense(const AttendDenseArgs& args);

}  // namespace sluice::impl::cpu
