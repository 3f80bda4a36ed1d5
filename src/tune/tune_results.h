// results.json of `sluice tune`, and the plan file. Keys: docs/results.md, docs/plan.md.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/results.h"
#include "plan/plan_file.h"
#include "tune/tune.h"

namespace sluice::impl {

nlohmann::json tune_results(const ResultsOrigin& origin, const TuneOptions& options,
                            const TuneResult& result);

// The plan with what it was made for. bases: the sidecar, where the plan needs one.
PlanFile tuned_plan_file(const ResultsOrigin& origin, const TuneOptions& options,
                         const TuneResult& result, const std::optional<PlanBases>& bases);

}  // namespace sluice::impl
