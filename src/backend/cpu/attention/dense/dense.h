// Exact attention on the CPU, docs/algorithm.md section 3.

#pragma once

#include <functional>

#include "backend/backend.h"

namespace sluice::impl::cpu::dense {

void attend(const AttendDenseArgs& args);

// store: the backend's store_kv(), called from several threads.
void attend_ragged(const AttendRaggedArgs& args,
                   const std::function<void(const StoreKvArgs&)>& store);

}  // namespace sluice::impl::cpu::dense
