// What `eval` prints of attention compared with dense, in the layout of llama.cpp's perplexity
// tool where the statistics are the same.

#pragma once

#include "eval/compare_attention.h"
#include "plan/attention_plan.h"

namespace sluice::cli {

// A line after each window, with headings before the first: every statistic of a single plan, or
// the divergence of each of several.
void print_running(const CompareResult& so_far, const std::vector<UniformAttention>& choices,
                   const PlanShape& shape);

// Each statistic of one plan on a line.
void print_summary(const PlanComparison& plan, const UniformAttention& choice);

// A row per plan.
void print_table(const CompareResult& result, const std::vector<UniformAttention>& choices,
                 const PlanShape& shape);

}  // namespace sluice::cli
