// The results.json of `generate`: docs/results.md.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/audit/audited_steps.h"
#include "eval/results.h"
#include "model/batch.h"

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

// Of several prompts that were continued together.
struct GeneratedBatch {
  struct Text {
    std::string prompt;
    std::optional<std::string> id;
    bool dense = false;  // did not follow the plan
    BatchAnswer answer;
  };
  const GenerateOptions& options;
  const UniformChoice& choice;
  int64_t n_live = 1;  // at one time, at most
  std::span<const Text> texts;
  double seconds = 0;  // of all of them
};
nlohmann::json batch_results(const ResultsOrigin& origin, const GeneratedBatch& batch);

// Tokens of all answers.
int64_t n_generated(std::span<const GeneratedBatch::Text> texts);

}  // namespace sluice::impl
