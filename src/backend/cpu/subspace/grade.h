// Which elements of a row a graded product keeps: GradeArgs in backend/subspace.h.

#pragma once

#include "backend/subspace.h"

namespace sluice::impl::cpu::subspace {

void grade_rows(const GradeArgs& args, int64_t begin, int64_t end);

}  // namespace sluice::impl::cpu::subspace
