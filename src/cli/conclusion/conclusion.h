// The sentences that a command ends with: does it pay here, what was lost, what to try next.

#pragma once

#include <string>
#include <vector>

#include "eval/calibrate.h"
#include "eval/compare/compare_plans.h"
#include "eval/runs/bench_model.h"
#include "tune/tune.h"

namespace sluice::impl::cli {

// context: the longest that the model has.
std::string bench_conclusion(const BenchResult& result, int64_t context);
// labels: of the plans.
std::string eval_conclusion(const CompareResult& result, const std::vector<std::string>& labels);
// output: where the plan went.
std::string tune_conclusion(const TuneOptions& options, const TuneResult& result,
                            const std::string& output);
// output: where the bases went.
std::string calibrate_conclusion(const Calibration& calibration, const std::string& output);

}  // namespace sluice::impl::cli
