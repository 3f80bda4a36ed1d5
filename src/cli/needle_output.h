// What `needle` prints.

#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/terminal/text_table.h"
#include "eval/needle/find_needles.h"

namespace sluice::impl::cli {

using NeedleLabels = std::vector<std::string>;  // (n_plans)

// A row per case: what dense and every plan make of it.
TextTable needle_cases_table(std::span<const NeedleCase> cases, const NeedleLabels& labels);

// The share that dense and every plan find of each task and length, in percent with its binomial
// standard error.
TextTable needle_accuracy_table(std::span<const NeedleCase> cases, const NeedleLabels& labels,
                                const NeedleGrid& grid);

// Totals of each plan, and at the end what they mean in one line.
std::string needle_totals(std::span<const NeedleCase> cases, const NeedleLabels& labels);

}  // namespace sluice::impl::cli
