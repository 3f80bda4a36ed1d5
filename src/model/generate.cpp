// Prefill, the decoding loop, and the filter for stop strings.

#include "model/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace sluice::impl {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Scores after the last token of the prompt. Returns the seconds spent in options.prompt_pass.
double prefill(Model& model, std::span<const int32_t> prompt, const GenerateOptions& options,
               KvCache& cache, const Tensor& scores) {
  double elsewhere = 0;
  for (size_t begin = 0; begin < prompt.size(); begin += kPrefillTokens) {
    const size_t n = std::min<size_t>(kPrefillTokens, prompt.size() - begin);
    const ConstTensor hidden = model.forward(prompt.subspan(begin, n), cache);
    if (options.prompt_pass) {
      const auto start = std::chrono::steady_clock::now();
      options.prompt_pass(prompt, static_cast<int64_t>(begin), hidden);
      elsewhere += seconds_since(start);
    }
    if (begin + n == prompt.size())
      model.logits(hidden.rows_from(static_cast<int64_t>(n) - 1, 1), scores);
  }
  return elsewhere;
}

}  // namespace

std::string StopFilter::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  // Of several stop strings the one complete first counts, so that the answer does not depend on
  // how the text is cut into pieces.
  size_t cut = std::string::npos, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos || at + stop.size() > end) continue;
    cut = at + stop.size() < end ? at : std::min(cut, at);
    end = at + stop.size();
  }
  if (cut != std::string::npos) {
    stopped_ = true;
    held_.resize(cut);
    return std::move(held_);
  }
  size_t keep = 0;  // longest end of held_ that begins a stop string
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
  std::string ready = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return ready;
}

GenerateResult generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& emit) {
  const ModelSpec& spec = model.spec();
  if (!spec.causal)
    throw Error(spec.family + " is an encoder and does not continue text",
                "generate needs a causal model such as GPT-2 or Llama");
  if (std::any_of(options.stop.begin(), options.stop.end(),
                  [](const std::string& s) { return s.empty(); }))
    throw Error("a stop string is empty", "leave it out, or give it some text");
  Sampler sampler(options.sampler);
  std::vector<int32_t> tokens = tokenizer.encode(prompt, /*add_special=*/true);
  if (tokens.empty()) {  // something to start from
    if (const auto first = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos())
      tokens.push_back(*first);
    else
      throw Error("the prompt is empty", "give some text with -p or -f");
  }
  GenerateResult result;
  result.n_prompt = static_cast<int64_t>(tokens.size());
  if (result.n_prompt >= model.context())
    throw Error(fmt::format("the prompt has {} tokens, the context is {}", result.n_prompt,
                            model.context()),
                "a larger --context, if the model has it, or a shorter prompt");

  SLUICE_CHECK(options.n_predict >= 0);
  KvCache cache = model.make_cache(
      1, result.n_prompt + std::min(options.n_predict, model.context() - result.n_prompt),
      options.plan.attention, options.plan.linear);
  std::vector<float> scores(static_cast<size_t>(spec.vocab));
  const Tensor scores_view(scores.data(), DType::kF32, {1, spec.vocab});
  StreamDecoder decoder(tokenizer, /*skip_special=*/true);
  StopFilter filter(options.stop);
  const auto send = [&](const std::string& text) {
    if (const std::string ready = filter.push(text); !ready.empty()) emit(ready);
  };

  emit("");
  auto start = std::chrono::steady_clock::now();
  if (options.n_predict > 0) {
    const double elsewhere = prefill(model, tokens, options, cache, scores_view);
    result.prefill_seconds = seconds_since(start) - elsewhere;
  }
  start = std::chrono::steady_clock::now();
  while (static_cast<int64_t>(result.tokens.size()) < options.n_predict) {
    const int32_t token = sampler.pick(scores, tokens);
    const bool eos =
        std::find(spec.eos_ids.begin(), spec.eos_ids.end(), token) != spec.eos_ids.end();
    if (eos && !options.ignore_eos) {
      result.end = GenerateResult::End::kEos;
      break;
    }
    tokens.push_back(token);
    result.tokens.push_back(token);
    send(decoder.push(token));
    if (options.go_on && !options.go_on(token)) {
      result.end = GenerateResult::End::kCallback;
      break;
    }
    if (filter.stopped()) break;
    if (static_cast<int64_t>(result.tokens.size()) == options.n_predict) break;
    if (cache.length() == model.context()) {
      result.end = GenerateResult::End::kContextFull;
      break;
    }
    if (options.step)
      options.step(tokens, cache, scores_view);
    else
      model.logits(model.forward({&token, 1}, cache), scores_view);
  }
  result.decode_seconds = seconds_since(start);
  result.cache = cache.memory();
  result.linear.add(cache, spec);
  send(decoder.finish());
  if (const std::string rest = filter.finish(); !rest.empty()) emit(rest);
  if (filter.stopped()) result.end = GenerateResult::End::kStopString;
  return result;
}

}  // namespace sluice::impl
