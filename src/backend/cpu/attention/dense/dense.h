// Exact attention on the CPU, docs/algorithm.md section 3.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::cpu::dense {

void store(const StoreKvArgs& args);
void attend(const AttendDenseArgs& args);
void attend_ragged(const AttendRaggedArgs& args);

}  // namespace sluice::impl::cpu::dense
