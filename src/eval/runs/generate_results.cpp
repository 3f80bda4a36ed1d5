#include "eval/runs/generate_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/audit/audit_results.h"
#include "plan/plan_json.h"

namespace sluice::impl {
namespace {

double rate(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

// A float as it was typed: 1.2 and not 1.2000000476837158.
double as_typed(float value) { return std::stod(fmt::format("{}", value)); }

}  // namespace

std::string_view end_name(GenerateResult::End end) {
  switch (end) {
    case GenerateResult::End::kLength:
      return "length";
    case GenerateResult::End::kEos:
      return "end token";
    case GenerateResult::End::kStopString:
      return "stop string";
    case GenerateResult::End::kContextFull:
      return "context full";
    case GenerateResult::End::kCallback:
      return "callback";
  }
  SLUICE_CHECK(!"unnamed end");
}

double prefill_rate(const GenerateResult& result) {
  return rate(result.n_prompt, result.prefill_seconds);
}

double decode_rate(const GenerateResult& result) {
  const auto n = static_cast<int64_t>(result.tokens.size());
  return rate(std::max<int64_t>(n - 1, 0), result.decode_seconds);
}

nlohmann::json generate_results(const ResultsOrigin& origin, const GeneratedText& generated) {
  const GenerateResult& result = generated.result;
  const SamplerOptions& sampler = generated.options.sampler;
  nlohmann::json results = results_of("generate", origin);
  results["settings"] = {{"context", origin.model.context()},
                         {"predict", generated.options.n_predict},
                         {"temperature", as_typed(sampler.temperature)},
                         {"top_k", sampler.top_k},
                         {"top_p", as_typed(sampler.top_p)},
                         {"min_p", as_typed(sampler.min_p)},
                         {"repetition_penalty", as_typed(sampler.repetition_penalty)},
                         {"stop", generated.options.stop},
                         {"seed", sampler.seed}};
  results["settings"].update(describe_choice(generated.choice, origin.model.plan_shape()));
  results["generation"] = {{"prompt", generated.prompt},
                           {"text", generated.text},
                           {"tokens", result.tokens},
                           {"end", end_name(result.end)},
                           {"n_prompt_tokens", result.n_prompt},
                           {"prefill_tokens_per_s", prefill_rate(result)},
                           {"decode_tokens_per_s", decode_rate(result)}};
  results["metrics"] = describe_linear_shares(result.linear);
  results["cache"] = describe_cache(result.cache);
  results["linear"] = describe_linear_work(result.linear);
  if (generated.audit != nullptr) results["audit"] = describe_audit(*generated.audit);
  return results;
}

}  // namespace sluice::impl
