#include "sluice/generate.h"

#include "api/generate_options.h"
#include "api/state.h"
#include "eval/audit/audited_steps.h"
#include "eval/plan_in_use.h"
#include "model/answer.h"

namespace sluice {
namespace impl::api {
namespace {

End end_of(GenerateResult::End end) {
  switch (end) {
    case GenerateResult::End::kLength:
      return End::kLength;
    case GenerateResult::End::kEos:
      return End::kEndToken;
    case GenerateResult::End::kStopString:
      return End::kStopString;
    case GenerateResult::End::kContextFull:
      return End::kContextFull;
    case GenerateResult::End::kCallback:
      break;
  }
  return End::kCallback;
}

}  // namespace

GenerateOptions wanted_of(const sluice::GenerateOptions& options) {
  if (options.max_tokens < 0) throw Error("max_tokens is less than none", "0 tokens or more");
  if (options.audit_every < 0 || options.audit_every > kMostAudited)
    throw Error("audit_every is out of range", "0 to 1024 tokens");
  if (options.audit_every > 0 && options.plan.is_dense())
    throw Error("an audit compares a plan with the exact model, and there is no plan",
                "give a plan, or no audit");
  return {.n_predict = options.max_tokens,
          .sampler = {.temperature = options.temperature,
                      .top_k = options.top_k,
                      .top_p = options.top_p,
                      .min_p = options.min_p,
                      .repetition_penalty = options.repetition_penalty,
                      .seed = options.seed},
          .stop = options.stop,
          .ignore_eos = options.ignore_end};
}

void take_run(GenerateResult run, std::string text, sluice::GenerateResult& to) {
  to.text = std::move(text);
  to.tokens = std::move(run.tokens);
  to.end = end_of(run.end);
  to.n_prompt = run.n_prompt;
  to.prefill_seconds = run.prefill_seconds;
  to.decode_seconds = run.decode_seconds;
}

}  // namespace impl::api
namespace {

MeasuredKl measured(const impl::AuditInterval& kl) {
  return {.n_samples = kl.n_samples, .mean = kl.mean, .low = kl.low, .high = kl.high};
}

impl::AuditOptions audit_of(const GenerateOptions& options) {
  impl::AuditOptions audit{.mode = options.audit_mode == AuditMode::kStep
                                       ? impl::AuditMode::kStep
                                       : impl::AuditMode::kReplay,
                           .every = options.audit_every,
                           .seed = options.seed};
  if (const auto info = options.plan.info()) audit.max_kl = info->max_kl;
  return audit;
}

}  // namespace

GenerateResult impl::api::run_generate(sluice::Model::State& state, std::vector<int32_t> tokens,
                                       impl::GenerateOptions wanted,
                                       const sluice::GenerateOptions& options) {
  sluice::GenerateResult result;
  if (!options.plan.is_dense()) {
    if (!options.always)
      result.why_dense = options.plan.why_dense(std::ssize(tokens), options.max_tokens);
    result.followed_plan = result.why_dense.empty();
  }
  if (result.followed_plan) {
    wanted.plan = state.prepared(options.plan);
    impl::check_generates(wanted.plan, "the plan");
  }
  std::optional<impl::AuditedSteps> audit;
  if (result.followed_plan && options.audit_every > 0) {
    const impl::AuditOptions how = audit_of(options);
    impl::check_audit(how, wanted.plan.attention);
    audit.emplace(state.model, how);
    impl::run_audited(*audit, wanted);
  }
  size_t n_shown = 0;  // characters of the answer that on_token has had
  const auto show = [&](int32_t token) {
    const std::string_view text = std::string_view(result.text).substr(n_shown);
    n_shown = result.text.size();
    return options.on_token({.id = token, .text = text});
  };
  if (options.on_token) wanted.go_on = show;
  impl::GenerateResult run =
      impl::generate(state.model, state.tokenizer(), {.tokens = std::move(tokens)}, wanted,
                     [&](std::string_view text) { result.text += text; });
  if (options.on_token && n_shown < result.text.size()) show(-1);
  impl::api::take_run(std::move(run), std::move(result.text), result);
  if (audit) {
    audit->finish_prompt();
    result.audit = AuditReport{.kl = measured(audit->kl()),
                               .prompt_kl = measured(audit->prompt_kl()),
                               .n_steps = audit->n_steps(),
                               .n_compared = audit->n_compared(),
                               .delta_factor = audit->delta_factor()};
  }
  return result;
}

GenerateResult generate(Model& model, std::string_view prompt, const GenerateOptions& options) {
  Model::State& state = *Access::of(model);
  const impl::Tokenizer& tokenizer = state.tokenizer();
  state.check_logits();
  impl::GenerateOptions wanted = impl::api::wanted_of(options);
  impl::check_continues(state.model);
  return impl::api::run_generate(state, impl::prompt_tokens(tokenizer, prompt), std::move(wanted),
                                 options);
}

}  // namespace sluice
