// `analyze --plan`: the sets of a plan's layers, and what its heads read.

#pragma once

#include "cli/options/options.h"
#include "cli/terminal/text_table.h"
#include "eval/analyze/plan_profile.h"

namespace sluice::impl::cli {

struct AnalyzePlanRequest {
  const CommonOptions& options;
  std::string plan, file, separator, format;
  std::vector<int64_t> contexts;  // none: the plan's
  int64_t n_windows = 0;
};

// The whole command: reads, measures, prints and writes.
void run_analyze_plan(const AnalyzePlanRequest& request);

// What every layer reads, and the sets of those that cluster.
TextTable plan_layers_table(const PlanProfile& profile, const AttentionPlan& plan);
TextTable plan_sets_table(const PlanProfile& profile, const AttentionPlan& plan);

}  // namespace sluice::impl::cli
