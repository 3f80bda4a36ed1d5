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

nlohmann::json settings_of(const ResultsOrigin& origin, const GenerateOptions& options,
                           const UniformChoice& choice) {
  const SamplerOptions& sampler = options.sampler;
  nlohmann::json settings = {{"context", origin.model.context()},
                             {"predict", options.n_predict},
                             {"temperature", as_typed(sampler.temperature)},
                             {"top_k", sampler.top_k},
                             {"top_p", as_typed(sampler.top_p)},
                             {"min_p", as_typed(sampler.min_p)},
                             {"repetition_penalty", as_typed(sampler.repetition_penalty)},
                             {"stop", options.stop},
                             {"seed", sampler.seed}};
  settings.update(describe_choice(choice, origin.model.plan_shape()));
  return settings;
}

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
  nlohmann::json results = results_of("generate", origin);
  results["settings"] = settings_of(origin, generated.options, generated.choice);
  nlohmann::json run = {{"prompt", generated.prompt},
                        {"text", generated.text},
                        {"tokens", result.tokens},
                        {"end", end_name(result.end)},
                        {"n_prompt_tokens", result.n_prompt},
                        {"prefill_tokens_per_s", prefill_rate(result)},
                        {"decode_tokens_per_s", decode_rate(result)},
                        {"metrics", describe_linear_shares(result.linear)},
                        {"cache", describe_cache(result.cache)},
                        {"linear", describe_linear_work(result.linear)}};
  if (generated.audit != nullptr) run["audit"] = describe_audit(*generated.audit);
  results["runs"] = nlohmann::json::array({std::move(run)});
  return results;
}

int64_t n_generated(std::span<const GeneratedBatch::Text> texts) {
  int64_t n = 0;
  for (const GeneratedBatch::Text& text : texts) n += std::ssize(text.answer.result.tokens);
  return n;
}

nlohmann::json batch_results(const ResultsOrigin& origin, const GeneratedBatch& batch) {
  nlohmann::json results = results_of("generate", origin);
  results["settings"] = settings_of(origin, batch.options, batch.choice);
  results["settings"]["batch"] = batch.n_live;
  results["runs"] = nlohmann::json::array();
  for (const GeneratedBatch::Text& text : batch.texts) {
    nlohmann::json one = {{"prompt", text.prompt}};
    if (text.id) one["id"] = *text.id;
    if (text.answer.error) {
      one["error"] = text.answer.error->what();
    } else {
      const GenerateResult& result = text.answer.result;
      one.update({{"text", text.answer.text},
                  {"tokens", result.tokens},
                  {"end", end_name(result.end)},
                  {"n_prompt_tokens", result.n_prompt},
                  {"dense", text.dense}});
    }
    results["runs"].push_back(std::move(one));
  }
  results["batch"] = {{"seconds", batch.seconds},
                      {"n_tokens", n_generated(batch.texts)},
                      {"tokens_per_s", rate(n_generated(batch.texts), batch.seconds)}};
  return results;
}

}  // namespace sluice::impl
