#include "model/answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace sluice::impl {
namespace {

std::vector<int32_t> prompt_tokens(const Model& model, const Tokenizer& tokenizer,
                                   std::string_view prompt, const GenerateOptions& options) {
  const ModelSpec& spec = model.spec();
  if (!spec.causal)
    throw Error(spec.family + " is an encoder and does not continue text",
                "generate needs a causal model such as GPT-2 or Llama");
  check_stop_strings(options.stop);
  std::vector<int32_t> tokens = tokenizer.encode(prompt, /*add_special=*/true);
  if (tokens.empty()) {  // something to start from
    if (const auto first = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos())
      tokens.push_back(*first);
    else
      throw Error("the prompt is empty", "give some text with -p or -f");
  }
  if (std::ssize(tokens) >= model.context())
    throw Error(
        fmt::format("the prompt has {} tokens, the context is {}", tokens.size(), model.context()),
        "a larger --context, if the model has it, or a shorter prompt");
  SLUICE_CHECK(options.n_predict >= 0);
  return tokens;
}

}  // namespace

Answer::Answer(Model& model, const Tokenizer& tokenizer, std::string_view prompt,
               GenerateOptions options, Emit emit)
    : model_(model),
      options_(std::move(options)),
      emit_(std::move(emit)),
      sampler_(options_.sampler),
      tokens_(prompt_tokens(model, tokenizer, prompt, options_)),
      cache_(model.make_cache(
          1,
          std::ssize(tokens_) + std::min(options_.n_predict, model.context() - std::ssize(tokens_)),
          options_.plan.attention, options_.plan.linear)),
      decoder_(tokenizer, /*skip_special=*/true),
      filter_(options_.stop),
      ended_(options_.n_predict == 0) {
  result_.n_prompt = std::ssize(tokens_);
  emit_("");
}

std::span<const int32_t> Answer::pending() const {
  const auto rest = tokens().subspan(static_cast<size_t>(cache_.length()));
  return rest.first(std::min<size_t>(rest.size(), kPrefillTokens));
}

void Answer::send(const std::string& text) {
  if (const std::string ready = filter_.push(text); !ready.empty()) emit_(ready);
}

void Answer::end(GenerateResult::End why) {
  result_.end = why;
  ended_ = true;
}

void Answer::take(int32_t token) {
  using End = GenerateResult::End;
  SLUICE_CHECK(!ended_);
  const std::vector<int32_t>& eos = model_.spec().eos_ids;
  if (!options_.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end())
    return end(End::kEos);
  tokens_.push_back(token);
  result_.tokens.push_back(token);
  send(decoder_.push(token));
  if (options_.go_on && !options_.go_on(token)) return end(End::kCallback);
  if (filter_.stopped()) return end(End::kStopString);
  if (std::ssize(result_.tokens) == options_.n_predict) return end(End::kLength);
  if (cache_.length() == model_.context()) end(End::kContextFull);
}

GenerateResult Answer::finish() {
  result_.cache = cache_.memory();
  result_.linear.add(cache_, model_.spec());
  send(decoder_.finish());
  if (const std::string rest = filter_.finish(); !rest.empty()) emit_(rest);
  if (filter_.stopped()) result_.end = GenerateResult::End::kStopString;
  return std::move(result_);
}

}  // namespace sluice::impl
