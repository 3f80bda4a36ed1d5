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

void Batch::begin_pass() {
  SLUICE_CHECK(!live_.empty());
  scored_.clear();
  const std::vector<Live*> pass = next_pass();
  if (pass.empty()) return;  // they wanted no tokens
  std::vector<SequenceTokens> sequences;
  for (const Live* live : pass)
    sequences.push_back({live->answer->pending(), &live->answer->cache()});
  const ConstTensor hidden = model_.forward_ragged(sequences);
  std::vector<int32_t> rows;
  int64_t row = 0;
  for (size_t i = 0; i < pass.size(); ++i) {
    row += std::ssize(sequences[i].tokens);
    if (pass[i]->answer->in_prompt()) continue;
    rows.push_back(static_cast<int32_t>(row - 1));
    scored_.push_back(pass[i]);
  }
  chosen_.resize(scored_.size());
  if (scored_.empty() || !model_.has_last_layer()) return;
  read_scores(hidden, rows);
  if (!model_.chooses()) return;
  const auto vocab = static_cast<size_t>(model_.spec().vocab);
  parallel_each(std::ssize(scored_), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    chosen_[at] = scored_[at]->answer->pick(std::span(scores_).subspan(at * vocab, vocab));
  });
  model_.share(chosen_);
}

void Batch::end_pass(const Done& done) {
  if (!scored_.empty() && !model_.chooses()) model_.share(chosen_);
  for (size_t i = 0; i < scored_.size(); ++i) {
    if (scored_[i]->prefill_seconds == 0)
      scored_[i]->prefill_seconds = seconds_since(scored_[i]->begun);
    scored_[i]->answer->take(chosen_[i]);
  }
  scored_.clear();
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

namespace {

// Whether it is the prompt that makes an Error, wherever it is read.
bool is_refused(const Model& model, const Tokenizer& tokenizer, const BatchPrompt& prompt,
                const GenerateOptions& options) {
  try {
    check_prompt(model,
                 prompt.tokens.empty() ? prompt_tokens(tokenizer, prompt.text) : prompt.tokens,
                 options);
  } catch (const Error&) {
    return true;
  }
  return false;
}

}  // namespace

void generate_batch(Model& model, const Tokenizer& tokenizer, std::span<const BatchPrompt> prompts,
                    const GenerateOptions& options, int64_t n_live, const BatchEvents& events) {
  SLUICE_CHECK(n_live > 0);
  // While one group is on its path through the stages of a divided model, others are at other ones.
  const Stage* stage = model.stage();
  const int64_t n_groups = stage == nullptr ? 1 : std::min<int64_t>(stage->n_stages(), n_live);
  std::vector<Batch> groups;
  for (int64_t g = 0; g < n_groups; ++g) groups.emplace_back(model, tokenizer);
  std::vector<BatchAnswer> answers(prompts.size());
  const auto answer_of = [&](int64_t index) -> BatchAnswer& {
    return answers[static_cast<size_t>(index)];
  };
  const auto done = [&](int64_t index, GenerateResult result) {
    BatchAnswer& answer = answer_of(index);
    answer.result = std::move(result);
    if (events.done) events.done(index, std::move(answer));
  };
  const auto add = [&](Batch& batch, int64_t index) {
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
      // Ranks refuse a prompt alike; a rank that lacks memory for it cannot go on alone.
      if (model.ranks() != nullptr && !is_refused(model, tokenizer, prompt, own)) throw;
      answer.error = error;
      if (events.done) events.done(index, std::move(answer));
    }
  };
  int64_t next = 0;
  const auto idle = [](const Batch& batch) { return batch.n_live() == 0; };
  while (next < std::ssize(prompts) || !std::all_of(groups.begin(), groups.end(), idle))
    for (int64_t g = 0; g < n_groups; ++g) {
      Batch& group = groups[static_cast<size_t>(g)];
      if (group.n_live() > 0) group.end_pass(done);
      const int64_t room = (n_live + g) / n_groups;  // sums to n_live
      while (next < std::ssize(prompts) && group.n_live() < room) add(group, next++);
      if (group.n_live() > 0) group.begin_pass();
    }
}

}  // namespace sluice::impl
