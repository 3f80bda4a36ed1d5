// What `bench` is given and what it prints.

#pragma once

#include "cli/terminal/text_table.h"
#include "eval/runs/bench_model.h"
#include "plan/plan.h"

namespace sluice::impl::cli {

// What tells choices apart, in short: "keys, tau 0.3". The name of a plan file.
std::vector<std::string> choice_labels(const std::vector<UniformChoice>& choices);

// Choices as candidates, so labelled.
std::vector<BenchCandidate> bench_candidates(const std::vector<UniformChoice>& choices,
                                             const std::vector<Plan>& plans,
                                             const PlanShape& shape);

// A row per case: time, rate, and the speed-up with its range or that it shows none.
TextTable bench_table(const BenchResult& result, std::string title);
// The same with numbers alone, where the time went, and what was saved.
TextTable full_bench_table(const BenchResult& result, std::string title);

}  // namespace sluice::impl::cli
