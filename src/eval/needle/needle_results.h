// The results.json of `needle`: docs/results.md.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/needle/find_needles.h"
#include "eval/results.h"

namespace sluice::impl {

struct FoundNeedles {
  const NeedleGrid& grid;
  std::span<const UniformChoice> choices;  // (n_plans), what the plans are
  std::span<const std::string> labels;     // (n_plans), in a few words
  std::span<const NeedleCase> cases;
  int64_t n_text_tokens = 0;  // there were to choose haystacks from
};
nlohmann::json needle_results(const ResultsOrigin& origin, const FoundNeedles& needles);

}  // namespace sluice::impl
