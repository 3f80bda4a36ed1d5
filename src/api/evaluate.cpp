#include "sluice/evaluate.h"

#include <nlohmann/json.hpp>

#include "api/state.h"
#include "eval/compare/compare_plans.h"
#include "eval/compare/perplexity.h"
#include "eval/eval_results.h"
#include "eval/plan_in_use.h"

namespace sluice {
namespace {

Measured measured(const impl::RunningMean& mean) { return {mean.mean(), mean.standard_error()}; }
Measured measured(const impl::Comparison& tokens, const impl::Metric& metric) {
  return {tokens.value(metric), tokens.error(metric)};
}

impl::ResultsOrigin origin_of(Model::State& state, const std::filesystem::path& text) {
  return {.command_line = "sluice::evaluate()",
          .checkpoint = *state.checkpoint,
          .model = state.model,
          .text = text,
          .model_sha256 = state.sha256()};
}

// What results call a plan.
impl::UniformChoice choice_of(const Plan& plan) {
  const std::shared_ptr<const Plan::State>& state = Access::of(plan);
  if (state == nullptr) return {};
  if (state->uniform) return {.attention = *state->uniform};
  return impl::heading_of(state->file->plan, state->path);
}

Evaluation evaluate_dense(Model::State& state, const std::filesystem::path& path,
                          impl::TextStream& text, const EvaluateOptions& options) {
  const impl::PerplexityResult found =
      impl::evaluate_perplexity(state.model, text, {.max_windows = options.max_windows},
                                [&](const impl::PerplexityResult& so_far) {
                                  if (options.progress) options.progress(so_far.n_windows);
                                });
  Evaluation out{.perplexity = {found.perplexity(), found.standard_error()},
                 .loss = measured(found.loss),
                 .n_tokens = found.loss.count(),
                 .n_windows = found.n_windows,
                 .plans = {}};
  if (options.results)
    out.results = impl::results_text(impl::perplexity_results(origin_of(state, path), found));
  return out;
}

PlanLoss loss_of(const impl::PlanComparison& plan) {
  const impl::Comparison& tokens = plan.tokens;
  return {.perplexity = measured(tokens, impl::metric("ppl")),
          .perplexity_ratio = measured(tokens, impl::metric("ppl_ratio")),
          .kl = measured(tokens, impl::metric("kl_mean")),
          .kl_p99 = tokens.value(impl::metric("kl_p99")),
          .top1_agreement = measured(tokens, impl::metric("top1_agreement")),
          .keys_read = plan.work.keys_read_fraction(),
          .cache_bytes_share = plan.cache.share_of_dense()};
}

}  // namespace

Evaluation evaluate(Model& model, const std::filesystem::path& text, std::span<const Plan> plans,
                    const EvaluateOptions& options) {
  Model::State& state = *Access::of(model);
  state.check_logits();
  if (!state.model.spec().causal)
    throw Error(state.model.spec().family + " is an encoder, which predicts no token that follows",
                "`sluice eval` measures it on masked tokens");
  if (options.max_windows < 0) throw Error("max_windows is less than none", "0 for all of them");
  std::vector<impl::Plan> ready;
  for (const Plan& plan : plans) ready.push_back(state.prepared(plan));
  impl::TextStream stream = impl::api::with_files(
      [&] { return impl::TextStream(text, state.tokenizer(), options.separator); });
  if (plans.empty()) return evaluate_dense(state, text, stream, options);
  const impl::CompareResult found =
      impl::compare_plans(state.model, stream, ready, {.max_windows = options.max_windows},
                          [&](const impl::CompareResult& so_far) {
                            if (options.progress) options.progress(so_far.n_windows);
                          });
  const impl::Comparison& tokens = found.plans.front().tokens;
  Evaluation out{.perplexity = measured(tokens, impl::metric("ppl_base")),
                 .loss = measured(tokens, impl::metric("loss_base")),
                 .n_tokens = tokens.n_tokens(),
                 .n_windows = found.n_windows,
                 .plans = {}};
  for (const impl::PlanComparison& plan : found.plans) out.plans.push_back(loss_of(plan));
  if (!options.results) return out;
  std::vector<impl::UniformChoice> choices;
  for (const Plan& plan : plans) choices.push_back(choice_of(plan));
  out.results = impl::results_text(impl::comparison_results(
      origin_of(state, text), {.choices = choices,
                               .plans = ready,
                               .result = found,
                               .prepared_bytes = state.model.prepared_bytes(),
                               .tokenizer = &stream.tokenizer()}));
  return out;
}

}  // namespace sluice
