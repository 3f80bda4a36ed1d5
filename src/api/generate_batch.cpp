#include "api/generate_options.h"
#include "api/state.h"
#include "eval/plan_in_use.h"
#include "model/batch.h"
#include "sluice/generate.h"

namespace sluice {

std::vector<BatchResult> generate_batch(Model& model, std::span<const std::string> prompts,
                                        const GenerateOptions& options, const BatchOptions& batch) {
  Model::State& state = *Access::of(model);
  const impl::Tokenizer& tokenizer = state.tokenizer();
  state.check_logits();
  if (options.audit_every > 0)
    throw Error("an audit is of one text", "generate() for each prompt, or no audit");
  if (options.on_token)
    throw Error("on_token of GenerateOptions is for one text", "BatchOptions has one of its own");
  if (batch.max_live < 1) throw Error("max_live is less than one text", "1 text or more");
  if (state.info.is_encoder)
    throw Error(state.info.family + " is an encoder and does not continue text",
                "generate needs a causal model such as GPT-2 or Llama");
  impl::GenerateOptions wanted = impl::api::wanted_of(options);
  impl::check_stop_strings(wanted.stop);
  const impl::Sampler checked(wanted.sampler);  // throws for all prompts alike
  std::vector<BatchResult> results(prompts.size());
  std::vector<impl::BatchPrompt> list;
  bool follows = false;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateResult& result = results[i].result;
    if (!options.plan.is_dense()) {
      const auto n_prompt = std::ssize(tokenizer.encode(prompts[i], /*add_special=*/true));
      if (!options.always) result.why_dense = options.plan.why_dense(n_prompt, options.max_tokens);
      result.followed_plan = result.why_dense.empty();
    }
    follows = follows || result.followed_plan;
    list.push_back({.text = prompts[i], .dense = !result.followed_plan});
  }
  if (follows) {
    wanted.plan = state.prepared(options.plan);
    impl::check_generates(wanted.plan, "the plan");
  }
  std::vector<size_t> n_shown(prompts.size());  // characters that on_token has had
  const auto show = [&](size_t index, int32_t token, std::string_view text) {
    const std::string_view fresh = text.substr(n_shown[index]);
    n_shown[index] = text.size();
    return batch.on_token(index, {.id = token, .text = fresh});
  };
  impl::BatchEvents events;
  if (batch.on_token)
    events.token = [&](int64_t index, int32_t token, std::string_view text) {
      return show(static_cast<size_t>(index), token, text);
    };
  events.done = [&](int64_t index, impl::BatchAnswer answer) {
    const auto i = static_cast<size_t>(index);
    if (batch.on_token && n_shown[i] < answer.text.size()) show(i, -1, answer.text);
    results[i].error = std::move(answer.error);
    impl::api::take_run(std::move(answer.result), std::move(answer.text), results[i].result);
  };
  impl::generate_batch(state.model, tokenizer, list, wanted, batch.max_live, events);
  return results;
}

}  // namespace sluice
