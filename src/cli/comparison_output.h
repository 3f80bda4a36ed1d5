// What `eval` prints of plans compared with dense, in the layout of llama.cpp's perplexity
// tool where the statistics are the same.

#pragma once

#include "eval/compare/compare_plans.h"
#include "plan/plan.h"

namespace sluice::impl::cli {

// A line after each window, with headings before the first: every statistic of a single plan, or
// the divergence of each of several.
void print_running(const CompareResult& so_far, const std::vector<UniformChoice>& choices,
                   const PlanShape& shape);

// Each statistic of one plan on a line, and a row for each linear input that is not dense.
void print_summary(const PlanComparison& plan, const UniformChoice& choice);

// A row per plan, and what is paired over windows.
void print_table(const CompareResult& result, const std::vector<UniformChoice>& choices,
                 const PlanShape& shape);

}  // namespace sluice::impl::cli
