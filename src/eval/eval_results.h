// The results.json of `eval`: docs/results.md.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/compare/perplexity.h"
#include "eval/results.h"

namespace sluice::impl {

// Of the exact model alone.
nlohmann::json perplexity_results(const ResultsOrigin& origin, const PerplexityResult& result);

// Of plans compared with it: what was asked for, and what came of it, in the same order.
struct ComparedChoices {
  std::span<const UniformChoice> choices;
  std::span<const Plan> plans;
  const CompareResult& result;
  int64_t n_predict = 0;
  MaskOptions mask = {};                 // of an encoder
  int64_t prepared_bytes = 0;            // of images and columns, without the dense matrices
  const Tokenizer* tokenizer = nullptr;  // for the loss token by token; none: left out
};
nlohmann::json comparison_results(const ResultsOrigin& origin, const ComparedChoices& compared);

}  // namespace sluice::impl
