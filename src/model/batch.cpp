#include "model/batch.h"

#include <algorithm>

#include "core/seconds.h"
#include "core/threads.h"
#include "model/grown.h"

namespace sluice::impl {

void Batch::add(int64_t id, std::string_view prompt, const GenerateOptions& options,
                Answer::Emit emit) {
  check_continues(model_);
  add(id, {.tokens = prompt_tokens(tokenizer_, prompt)}, options, std::move(emit));
}

void Batch::add(int64_t id, Prompt prompt, const GenerateOptions& options, Answer::Emit emit) {
  SLUICE_CHECK(!options.step && !options.prompt_pass && !options.cancelled);
  live_.push_back({.id = id,
                   .answer = std::make_unique<Answer>(model_, tokenizer_, std::move(prompt),
                                                      options, std::move(emit)),
                   .begun = Clock::now()});
}

std::vector<Batch::Live*> Batch::next_pass() {
  std::vector<Live*> pass;
  int64_t n_prompt = 0;  // tokens of prompts
  bool full = false;     // a later prompt does not overtake one that has to wait
  for (Live& live : live_) {
    if (live.answer->ended()) continue;
    if (live.answer->in_prompt()) {
      const int64_t n = std::ssize(live.answer->pending());
      full = full || (n_prompt > 0 && n_prompt + n > kPrefillTokens);
      if (full) continue;
      n_prompt += n;
    }
    pass.push_back(&live);
  }
  return pass;
}

void Batch::read_scores(const ConstTensor& hidden, std::span<const int32_t> rows) {
  const auto n = std::ssize(rows);
  const int64_t vocab = model_.spec().vocab;
  scores_.resize(static_cast<size_t>(n * vocab));
  const Tensor scores(scores_.data(), DType::kF32, {n, vocab});
  if (n == hidden.rows()) return model_.logits(hidden, scores);
  const Tensor last = grown(model_.backend(), last_rows_, hidden.dtype(), n, hidden.row_elements());
  model_.backend().gather_rows(hidden, rows, last);
  model_.logits(last, scores);
}

void Batch::step(const Done& done) {
  SLUICE_CHECK(!live_.empty());
  const std::vector<Live*> pass = next_pass();
  if (pass.empty()) return remove_ended(done);  // they wanted no tokens
  std::vector<SequenceTokens> sequences;
  for (const Live* live : pass)
    sequences.push_back({live->answer->pending(), &live->answer->cache()});
  const ConstTensor hidden = model_.forward_ragged(sequences);
  std::vector<int32_t> rows;
  std::vector<Live*> scored;
  int64_t row = 0;
  for (size_t i = 0; i < pass.size(); ++i) {
    row += std::ssize(sequences[i].tokens);
    if (pass[i]->answer->in_prompt()) continue;
    rows.push_back(static_cast<int32_t>(row - 1));
    scored.push_back(pass[i]);
  }
  if (!scored.empty()) read_scores(hidden, rows);
  const auto vocab = static_cast<size_t>(model_.spec().vocab);
  std::vector<int32_t> tokens(scored.size());
  parallel_each(std::ssize(scored), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    tokens[at] = scored[at]->answer->pick(std::span(scores_).subspan(at * vocab, vocab));
  });
  for (size_t i = 0; i < scored.size(); ++i) {
    if (scored[i]->prefill_seconds == 0)
      scored[i]->prefill_seconds = seconds_since(scored[i]->begun);
    scored[i]->answer->take(tokens[i]);
  }
  remove_ended(done);
}

void Batch::remove_ended(const Done& done) {
  std::vector<Live> ended;
  for (Live& live : live_)
    if (live.answer->ended()) ended.push_back(std::move(live));
  std::erase_if(live_, [](const Live& live) { return live.answer == nullptr; });
  for (Live& live : ended) {
    GenerateResult result = live.answer->finish();
    live.answer.reset();  // makes room for others
    result.prefill_seconds = live.prefill_seconds;
    result.decode_seconds = seconds_since(live.begun) - live.prefill_seconds;
    done(live.id, std::move(result));
  }
}

void generate_batch(Model& model, const Tokenizer& tokenizer, std::span<const BatchPrompt> prompts,
                    const GenerateOptions& options, int64_t n_live, const BatchEvents& events) {
  SLUICE_CHECK(n_live > 0);
  Batch batch(model, tokenizer);
  std::vector<BatchAnswer> answers(prompts.size());
  const auto answer_of = [&](int64_t index) -> BatchAnswer& {
    return answers[static_cast<size_t>(index)];
  };
  const auto done = [&](int64_t index, GenerateResult result) {
    BatchAnswer& answer = answer_of(index);
    answer.result = std::move(result);
    if (events.done) events.done(index, std::move(answer));
  };
  const auto add = [&](int64_t index) {
    BatchAnswer& answer = answer_of(index);
    const BatchPrompt& prompt = prompts[static_cast<size_t>(index)];
    GenerateOptions own = options;
    if (prompt.dense) own.plan = {};
    if (events.token)
      own.go_on = [&events, &answer, index](int32_t token) {
        return events.token(index, token, answer.text);
      };
    try {
      const auto emit = [&answer](std::string_view text) { answer.text += text; };
      if (prompt.tokens.empty())
        batch.add(index, prompt.text, own, emit);
      else
        batch.add(index, {.tokens = prompt.tokens}, own, emit);
    } catch (const Error& error) {
      answer.error = error;
      if (events.done) events.done(index, std::move(answer));
    }
  };
  int64_t next = 0;
  while (next < std::ssize(prompts) || batch.n_live() > 0) {
    while (next < std::ssize(prompts) && batch.n_live() < n_live) add(next++);
    if (batch.n_live() > 0) batch.step(done);
  }
}

}  // namespace sluice::impl
