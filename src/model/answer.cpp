#include "model/answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace sluice::impl {
namespace {

std::vector<int32_t> checked_tokens(const Model& model, Prompt prompt,
                                    const GenerateOptions& options) {
  check_prompt(model, prompt.tokens, options);
  SLUICE_CHECK(prompt.cache == nullptr || (prompt.cache->length() < std::ssize(prompt.tokens) &&
                                           prompt.cache->capacity() == model.context()));
  return std::move(prompt.tokens);
}

// With room for the prompt and the answer.
std::optional<KvCache> own_cache(Model& model, const KvCache* given, int64_t n_tokens,
                                 const GenerateOptions& options) {
  if (given != nullptr) return std::nullopt;
  const int64_t capacity = n_tokens + std::min(options.n_predict, model.context() - n_tokens);
  return model.make_cache(1, capacity, options.plan.attention, options.plan.linear);
}

}  // namespace

void check_continues(const Model& model) {
  const ModelSpec& spec = model.spec();
  if (!spec.causal)
    throw Error(spec.family + " is an encoder and does not continue text",
                "generate needs a causal model such as GPT-2 or Llama");
}

void check_prompt(const Model& model, std::span<const int32_t> tokens,
                  const GenerateOptions& options) {
  check_continues(model);
  check_stop_strings(options.stop);
  SLUICE_CHECK(!tokens.empty() && options.n_predict >= 0);
  if (std::ssize(tokens) >= model.context())
    throw Error(
        fmt::format("the prompt has {} tokens, the context is {}", tokens.size(), model.context()),
        "a larger --context, if the model has it, or a shorter prompt");
}

Answer::Answer(Model& model, const Tokenizer& tokenizer, Prompt prompt, GenerateOptions options,
               Emit emit)
    : model_(model),
      options_(std::move(options)),
      emit_(std::move(emit)),
      sampler_(options_.sampler),
      tokens_(checked_tokens(model, {std::move(prompt.tokens), prompt.cache}, options_)),
      n_given_(std::ssize(tokens_)),
      own_(own_cache(model, prompt.cache, n_given_, options_)),
      cache_(own_ ? *own_ : *prompt.cache),
      decoder_(tokenizer, /*skip_special=*/true),
      filter_(options_.stop),
      ended_(options_.n_predict == 0) {
  result_.n_prompt = n_given_ - cache_.length();
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
  const auto has = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (!options_.ignore_eos && (has(model_.spec().eos_ids) || has(options_.end_ids)))
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
  result_.linear.add(cache_, model_.own_spec());
  send(decoder_.finish());
  if (const std::string rest = filter_.finish(); !rest.empty()) emit_(rest);
  if (filter_.stopped()) result_.end = GenerateResult::End::kStopString;
  return std::move(result_);
}

}  // namespace sluice::impl
