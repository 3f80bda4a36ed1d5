#include "eval/eval_results.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/text/token_text.h"
#include "plan/plan_json.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

// (T) of each token, null for the first; four digits.
json describe_token_kl(const PlanComparison& plan) {
  json out = json::array({nullptr});
  for (const float kl : plan.first_kl) out.push_back(std::stod(fmt::format("{:.4g}", kl)));
  return out;
}

json start_results(const ResultsOrigin& origin, int64_t n_tokens, int64_t n_windows) {
  json results = results_of("eval", origin, n_tokens);
  results["settings"] = {{"context", origin.model.context()}, {"windows", n_windows}};
  return results;
}

// One mean per layer; null where none was chosen.
json describe_taus(const AttentionWork& work) {
  json taus = json::array();
  for (const RunningMean& tau : work.chosen_taus())
    taus.push_back(tau.count() > 0 ? json(tau.mean()) : json());
  return taus;
}

// What each refined layer read; null for the others.
json describe_refined(const AttentionWork& work) {
  json layers = json::array();
  for (const RefineReads& reads : work.refine_reads()) {
    if (reads.empty()) {
      layers.push_back(nullptr);
      continue;
    }
    json positions = json::array();
    for (const RefineReads::Position& at : reads.by_position())
      positions.push_back({{"begin", at.begin},
                           {"near", at.near},
                           {"clusters", at.clusters},
                           {"opened", at.opened}});
    layers.push_back({{"near", reads.near_fraction()},
                      {"clusters", reads.clusters_fraction()},
                      {"opened", reads.opened_fraction()},
                      {"opened_by_head", reads.opened_by_head()},
                      {"positions", std::move(positions)}});
  }
  return layers;
}

// What an encoder's rows lose, layer by layer.
json describe_rows(const MaskedFigures& masked) {
  json layers = json::array();
  for (size_t i = 0; i < masked.layers.size(); ++i)
    layers.push_back({{"layer", i},
                      {"cosine", masked.layers[i].cosine.mean()},
                      {"relative_error", masked.layers[i].relative.mean()}});
  return layers;
}

json describe_interval(const PairedInterval& interval) {
  return {{"mean", interval.mean}, {"low", interval.low}, {"high", interval.high}};
}

// Paired over windows; null where these are too few.
json describe_paired(const std::vector<PlanComparison>& plans, size_t i) {
  const auto log_ratio = paired_log_ratio(plans[i]);
  if (!log_ratio) return {};
  json out = {{"n_windows", plans[i].windows.size()},
              {"log_ppl_ratio", describe_interval(*log_ratio)}};
  if (i > 0) {
    out["kl_less_first"] = describe_interval(*paired_kl(plans[i], plans[0]));
    out["log_ppl_less_first"] = describe_interval(*paired_loss(plans[i], plans[0]));
  }
  return out;
}

}  // namespace

json perplexity_results(const ResultsOrigin& origin, const PerplexityResult& result) {
  json results = start_results(origin, result.loss.count(), result.n_windows);
  const json choice = {{"attention", "dense"}, {"linear", "dense"}};
  results["settings"].update(choice);
  results["metrics"] = {{"n_tokens", result.loss.count()},
                        {"loss", result.loss.mean()},
                        {"loss_stderr", result.loss.standard_error()},
                        {"ppl", result.perplexity()},
                        {"ppl_stderr", result.standard_error()}};
  results["runs"] = {{{"settings", choice}, {"metrics", results["metrics"]}}};
  return results;
}

json comparison_results(const ResultsOrigin& origin, const ComparedChoices& compared) {
  const std::vector<PlanComparison>& found = compared.result.plans;
  SLUICE_CHECK(!found.empty() && compared.choices.size() == found.size() &&
               compared.plans.size() == found.size());
  const PlanShape shape = origin.model.plan_shape();
  json results = start_results(origin, found.front().tokens.n_tokens(), compared.result.n_windows);
  results["settings"]["predict"] = compared.n_predict;
  if (!shape.causal)
    results["settings"].update(
        {{"mask_share", compared.mask.share}, {"mask_seed", compared.mask.seed}});
  if (compared.prepared_bytes > 0)
    results["settings"]["prepared_linear_bytes"] = compared.prepared_bytes;
  for (size_t i = 0; i < found.size(); ++i) {
    json settings = describe_choice(compared.choices[i], shape);
    json plan = describe_plan(compared.plans[i].attention, shape.n_kv_heads);
    plan["linear"] = describe_linear_plan(compared.plans[i].linear);
    results["runs"].push_back({{"settings", std::move(settings)},
                               {"plan", std::move(plan)},
                               {"metrics", describe_comparison(found[i])},
                               {"paired", describe_paired(found, i)},
                               {"cache", describe_cache(found[i].cache)},
                               {"linear", describe_linear_work(found[i].linear)}});
    if (compared.tokenizer != nullptr)
      results["runs"].back()["token_kl"] = describe_token_kl(found[i]);
    if (found[i].masked) results["runs"].back()["row_errors"] = describe_rows(*found[i].masked);
    if (compared.choices[i].attention.tau_auto)
      results["runs"].back()["tau_chosen"] = describe_taus(found[i].work);
    if (!found[i].work.refine_reads().empty())
      results["runs"].back()["refine_reads"] = describe_refined(found[i].work);
  }
  if (compared.tokenizer != nullptr) {
    json texts = json::array();
    for (const int32_t id : compared.result.first_tokens)
      texts.push_back(token_text(*compared.tokenizer, id));
    results["window"] = {{"tokens", std::move(texts)}};
  }
  if (found.size() == 1) {
    const json& run = results["runs"][0];
    results["settings"].update(run["settings"]);
    results["metrics"] = run["metrics"];
    results["cache"] = run["cache"];
  }
  return results;
}

}  // namespace sluice::impl
