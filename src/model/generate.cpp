// Prefill, the decoding loop, and the filter for stop strings.

#include "model/generate.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/seconds.h"
#include "model/answer.h"
#include "ranks/archive.h"

namespace sluice::impl {
namespace {

// Scores after the last token of the prompt. Returns the seconds spent in options.prompt_pass.
double prefill(Model& model, const GenerateOptions& options, Answer& answer, const Tensor& scores) {
  double elsewhere = 0;
  while (answer.in_prompt()) {
    if (options.cancelled && options.cancelled()) {
      answer.cancel();
      break;
    }
    const int64_t begin = answer.cache().length();
    const ConstTensor hidden = model.forward(answer.pending(), answer.cache());
    if (options.prompt_pass) {
      const auto start = std::chrono::steady_clock::now();
      options.prompt_pass(answer.tokens(), begin, hidden);
      elsewhere += seconds_since(start);
    }
    if (!answer.in_prompt()) model.logits(hidden.rows_from(hidden.rows() - 1, 1), scores);
  }
  return elsewhere;
}

// The next token. Of a divided model, scores are the last rank's, and so is the choice.
int32_t pick(Model& model, Answer& answer, std::span<float> scores) {
  int32_t token = model.chooses() ? answer.pick(scores) : 0;
  model.share({&token, 1});
  return token;
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

void check_stop_strings(std::span<const std::string> stop) {
  if (std::any_of(stop.begin(), stop.end(), [](const std::string& s) { return s.empty(); }))
    throw Error("a stop string is empty", "leave it out, or give it some text");
}

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view prompt) {
  std::vector<int32_t> tokens = tokenizer.encode(prompt, /*add_special=*/true);
  if (!tokens.empty()) return tokens;
  if (const auto first = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos()) return {*first};
  throw Error("the prompt is empty", "give some text with -p or -f");
}

GenerateResult generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& emit) {
  check_continues(model);
  return generate(model, tokenizer, {.tokens = prompt_tokens(tokenizer, prompt)}, options, emit);
}

GenerateResult generate(Model& model, const Tokenizer& tokenizer, Prompt prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& emit) {
  Answer answer(model, tokenizer, std::move(prompt), options, emit);
  std::vector<float> scores(static_cast<size_t>(model.spec().vocab));
  const Tensor scores_view(scores.data(), DType::kF32, {1, model.spec().vocab});
  double prefill_seconds = 0;
  auto start = std::chrono::steady_clock::now();
  if (!answer.ended()) {
    const double elsewhere = prefill(model, options, answer, scores_view);
    prefill_seconds = seconds_since(start) - elsewhere;
  }
  start = std::chrono::steady_clock::now();
  while (!answer.ended()) {
    answer.take(pick(model, answer, scores));
    if (answer.ended()) break;
    if (options.step)
      options.step(answer.tokens(), answer.cache(), scores_view);
    else
      model.logits(model.forward(answer.pending(), answer.cache()), scores_view);
  }
  const double decode_seconds = seconds_since(start);
  GenerateResult result = answer.finish();
  result.prefill_seconds = prefill_seconds;
  result.decode_seconds = decode_seconds;
  return result;
}

void combine(const Model& model, GenerateResult& result) {
  if (model.ranks() == nullptr) return;
  const bool by_width = model.tensor_share() != nullptr;
  Packer pack;
  pack(result.cache, result.linear, result.prefill_seconds, result.decode_seconds);
  result.cache.bytes = {};
  result.cache.dense_bytes = 0;
  result.linear = {};
  bool first = true;
  for (const auto& bytes : model.ranks()->gather_all(pack.take())) {
    Unpacker unpack(bytes);
    CacheMemory cache;
    LinearWork linear;
    unpack(cache, linear, result.prefill_seconds, result.decode_seconds);
    if (by_width && !first) {
      // The same rows on every rank. So are counts of representatives in `copy`, but these few
      // bytes are not told apart from sums of clusters, which are divided.
      cache.bytes.selection_rows = cache.bytes.outputs = 0;
      result.linear.add_rank(linear);
    } else {
      result.linear += linear;
    }
    result.cache.bytes += cache.bytes;
    result.cache.dense_bytes += cache.dense_bytes;
    first = false;
  }
}

}  // namespace sluice::impl
