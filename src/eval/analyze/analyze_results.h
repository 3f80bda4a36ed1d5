// The results.json of `analyze`: docs/results.md, "What analyze writes".

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/analyze/analyze.h"
#include "eval/results.h"

namespace sluice::impl {

// What was asked for and found.
struct AnalyzeFindings {
  const AnalyzeOptions& options;
  std::vector<int64_t> contexts;  // as asked for
  const AnalyzeResult& result;    // of all contexts
  const Tokenizer& tokenizer;
};

// The whole file.
nlohmann::json analyze_results(const ResultsOrigin& origin, const AnalyzeFindings& findings);

// What it holds after the header: `settings`, `runs`, `map` and, for the paper's models, `paper`.
nlohmann::json describe_findings(const ModelSpec& spec, const AnalyzeFindings& findings);

// A figure's mean over windows under its name, and its standard deviation; null where no window has
// the figure.
void put_figure(nlohmann::json& to, std::string_view name, const RunningMean& figure);
// All figures of a set.
nlohmann::json set_json(const SetFigures& figures);

// One of its `runs`; `rules` are those that the profile was made with.
nlohmann::json profile_json(const Profile& profile, const std::vector<SelectRule>& rules);

}  // namespace sluice::impl
