// Exact attention on the CPU, docs/algorithm.md section 3.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::cpu::dense {

void attend(const AttendDenseArgs& args);

}  // namespace sluice::impl::cpu::dense
