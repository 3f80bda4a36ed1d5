#include "tune/tune_results.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/threads.h"
#include "plan/plan_json.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

json limit_or_null(double limit) { return std::isinf(limit) ? json() : json(limit); }

// What heads could choose from.
json describe_heads(const HeadOptions& heads) {
  json out = {{"attention", mode_name(heads.mode)}, {"windows", heads.windows}};
  if (heads.refines()) {
    out["delta"] = json::array();
    for (const double delta : heads.deltas) out["delta"].push_back(limit_or_null(delta));
    out["segment"] = heads.refine.segment;
    out["early"] = heads.refine.early;
    out["page"] = heads.refine.page;
    out["tile"] = heads.refine.tile;
    return out;
  }
  out["tau"] = heads.taus;
  out["far"] = json::array();
  for (const FarKey far : heads.fars) out["far"].push_back(far_name(far));
  return out;
}

json describe_loss(const Loss& loss) {
  return {{"kl_mean", loss.kl.mean()},
          {"kl_stderr", loss.kl.standard_error()},
          {"kl_p99", loss.kl_values.quantile(0.99)},
          {"kl_p999", loss.kl_values.quantile(0.999)},
          {"ppl_ratio", loss.ppl_ratio()},
          {"ppl_ratio_stderr", loss.ppl_ratio_stderr()},
          {"n_tokens", loss.kl.count()},
          {"n_documents", loss.kl.n_units()},
          {"n_needles", loss.needles.n},
          {"needles_dense", loss.needles.by_dense},
          {"needles_plan", loss.needles.found}};
}

// Of the length that the plan was made for: dense_ms, plan_ms and the speed-up with its spread.
json describe_time(const BenchResult& speed, const std::string& kind) {
  json out = json::array();
  for (const BenchCase& found : speed.cases) {
    if (found.candidate == 0 || !found.name.starts_with(kind)) continue;
    for (const BenchCase& dense : speed.cases)
      if (dense.candidate == 0 && dense.name == found.name)
        out.push_back({{"n_tokens", found.n_tokens},
                       {"dense_ms", dense.middle().total},
                       {"plan_ms", found.middle().total},
                       {"speedup", found.speedup.middle},
                       {"speedup_low", found.speedup.low},
                       {"speedup_high", found.speedup.high}});
  }
  return out;
}

// At the greatest length by the objective, and all lengths.
json describe_times(const TuneOptions& options, const TuneResult& result) {
  json out = {{"prefill", describe_time(result.speed, "pp")},
              {"decode", describe_time(result.speed, "tg")}};
  const bool decode = options.objective == PlanObjective::kDecode ||
                      options.objective == PlanObjective::kDecodeReads;
  const json of = out[decode ? "decode" : "prefill"];
  out["dense_ms"] = of.empty() ? json() : of.back()["dense_ms"];
  out["plan_ms"] = of.empty() ? json() : of.back()["plan_ms"];
  // Costs are those of the context's length, which is the greatest measured in a prefill.
  const bool predicts = is_time(options.objective) && !of.empty();
  out["predicted_ms"] =
      predicts ? json(of.back()["dense_ms"].get<double>() - (result.dense_cost - result.cost))
               : json();
  return out;
}

json figures(const TuneOptions& options, const TuneResult& result) {
  json steps = json::array();
  for (const TuneStep& step : result.steps)
    steps.push_back({{"budget", step.budget},
                     {"predicted_kl", step.predicted},
                     {"held_out", step.held_out},
                     {"loss", describe_loss(step.loss)}});
  return {{"contract",
           {{"max_kl", limit_or_null(options.contract.max_kl)},
            {"max_kl_p99", limit_or_null(options.contract.max_kl_p99)},
            {"max_kl_p999", limit_or_null(options.contract.max_kl_p999)},
            {"max_ppl_ratio", limit_or_null(options.contract.max_ppl_ratio)}}},
          {"objective", objective_name(options.objective)},
          {"calibration", describe_loss(result.calibration)},
          {"held_out", describe_loss(result.held_out)},
          {"predicted_kl", result.predicted_kl},
          // Below 0 where held-out documents happen to be easier.
          {"generalisation_gap", result.held_out.kl.mean() - result.calibration.kl.mean()},
          {"candidates", std::move(steps)},
          {"cost", {{"dense", result.dense_cost}, {"plan", result.cost}}},
          {"time", describe_times(options, result)},
          {"rejected_time",
           {{"prefill", describe_time(result.rejected_speed, "pp")},
            {"decode", describe_time(result.rejected_speed, "tg")}}},
          {"dense_because", result.dense_because.empty() ? json() : json(result.dense_because)},
          {"seconds", result.seconds}};
}

bool has_gsi(const LinearPlan& plan) {
  for (const LayerLinearPlan& layer : plan.layers)
    for (const GroupPlan& group : layer.groups)
      if (group.kind == LinearKind::kGsi) return true;
  return false;
}

std::optional<double> limit(double most) {
  return std::isinf(most) ? std::nullopt : std::optional(most);
}

int64_t n_tokens_of(const TextSplit& text) {
  int64_t n_tokens = 0;
  for (const auto* windows : {&text.calibration, &text.held_out})
    for (const TuneWindow& window : *windows) n_tokens += std::ssize(window.tokens) - 1;
  return n_tokens;
}

}  // namespace

json tune_results(const ResultsOrigin& origin, const TuneOptions& options,
                  const TuneResult& result) {
  json out = results_of("tune", origin, n_tokens_of(result.text));
  out.update(figures(options, result));
  out["settings"] = describe_heads(options.heads);
  out["settings"].update({{"context", options.split.context},
                          {"n_calibration", std::ssize(result.text.calibration)},
                          {"n_held_out", std::ssize(result.text.held_out)},
                          {"needles", options.needles},
                          {"seed", options.split.seed}});
  out["auto"] = {{"prefill_from", or_null(result.prefill_from)},
                 {"decode_from", or_null(result.decode_from)}};
  out["plan"] = describe_plan(result.plan.attention, origin.model.spec().n_kv_heads);
  out["plan"]["linear"] = describe_linear_plan(result.plan.linear);
  return out;
}

PlanFile tuned_plan_file(const ResultsOrigin& origin, const TuneOptions& options,
                         const TuneResult& result, const std::optional<PlanBases>& bases) {
  const ModelSpec& spec = origin.model.spec();
  PlanFile file{.plan = result.plan,
                .model = {.sha256 = origin.model_sha256,
                          .family = spec.family,
                          .n_layers = spec.n_layers,
                          .n_kv_heads = spec.n_kv_heads},
                .context = options.split.context,
                .objective = options.objective,
                .contract = PlanContract{.max_kl = limit(options.contract.max_kl),
                                         .max_kl_p99 = limit(options.contract.max_kl_p99),
                                         .max_kl_p999 = limit(options.contract.max_kl_p999),
                                         .max_ppl_ratio = limit(options.contract.max_ppl_ratio)}};
  file.auto_from = PlanAuto{result.prefill_from, result.decode_from};
  const Backend& backend = origin.model.backend();
  file.measured = PlanMeasured{std::string(dtype_name(backend.compute_dtype())),
                               device_text(backend), threads()};
  if (has_gsi(result.plan.linear)) file.bases = bases;
  file.provenance = figures(options, result);
  file.provenance.erase("contract");
  file.provenance.erase("objective");
  file.provenance["command_line"] = origin.command_line;
  file.provenance["text"] = describe_text(origin.text, n_tokens_of(result.text));
  return file;
}

}  // namespace sluice::impl
