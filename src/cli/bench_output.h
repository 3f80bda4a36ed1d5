// What `bench` is given and what it prints.

#pragma once

#include "cli/terminal/text_table.h"
#include "eval/runs/bench_model.h"
#include "plan/plan.h"

namespace sluice::impl::cli {

// Choices as candidates, labelled by what tells them apart: "keys, tau 0.3".
std::vector<BenchCandidate> bench_candidates(const std::vector<UniformChoice>& choices,
                                             const std::vector<Plan>& plans,
                                             const PlanShape& shape);

// A row per case: time, rate, speed-up with its spread, and where the time went.
TextTable bench_table(const BenchResult& result, std::string title);

}  // namespace sluice::impl::cli
