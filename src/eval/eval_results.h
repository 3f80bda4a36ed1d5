// The results.json of `eval`: docs/results.md.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/perplexity.h"
#include "eval/results.h"

namespace sluice {

// Of dense attention alone.
nlohmann::json perplexity_results(const ResultsOrigin& origin, const PerplexityResult& result);

// Of plans compared with it: what was asked for, and what came of it, in the same order.
struct ComparedChoices {
  std::span<const UniformAttention> choices;
  std::span<const AttentionPlan> plans;
  const CompareResult& result;
  int64_t n_predict = 0;
};
nlohmann::json comparison_results(const ResultsOrigin& origin, const ComparedChoices& compared);

}  // namespace sluice
