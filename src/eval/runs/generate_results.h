// The results.json of `generate`: docs/results.md.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/audit/audited_steps.h"
#include "eval/results.h"
#include "model/generate.h"

namespace sluice::impl {

// "length", "end token", "stop string", "context full", "callback".
std::string_view end_name(GenerateResult::End end);

// Tokens per second; 0 where nothing was timed. The first token of the answer comes with the
// prompt.
double prefill_rate(const GenerateResult& result);
double decode_rate(const GenerateResult& result);

struct GeneratedText {
  std::string prompt, text;
  const GenerateOptions& options;
  const UniformChoice& choice;
  const GenerateResult& result;
  const AuditedSteps* audit = nullptr;  // of its steps
};
nlohmann::json generate_results(const ResultsOrigin& origin, const GeneratedText& generated);

}  // namespace sluice::impl
