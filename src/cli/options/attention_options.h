// Flags that choose what attention does, the same in every command that can do more than dense.

#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/attention_plan.h"

namespace sluice::impl::cli {

// What was given; the rest has the defaults of docs/algorithm.md, section 1.
struct AttentionFlags {
  std::vector<std::string> modes, rules, fars, taus;  // of taus: numbers, or "auto"
  std::vector<std::string> deltas;                    // numbers, or "inf"
  std::optional<std::string> space, cache;
  std::optional<int64_t> window, block, sinks, from_layer, segment, early, page, tile;
  std::optional<double> tile_factor;
  std::optional<double> outlier_ratio;
  bool joint = false;
  bool strict = false;
  std::vector<double> keeps;
  bool baselines = false;  // whether the command has them: add_baseline_options
};

// --attention and what goes with each mode. lists: --attention, --select, --tau, --far and --delta
// take several values with commas.
void add_attention_options(CLI::App& command, AttentionFlags& flags, bool lists);

// Every combination of the values given; none for exact attention. Throws CLI::ValidationError for
// a flag that would have no effect.
std::vector<UniformAttention> attention_choices(const AttentionFlags& flags);

// "0.3", or "auto".
std::string tau_text(const UniformAttention& choice);
// A choice with its defaults filled in, for people.
std::string attention_text(const UniformAttention& choice, const PlanShape& shape);

}  // namespace sluice::impl::cli
