#include "sluice/sequence.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/state.h"
#include "eval/text/windows.h"
#include "model/generate.h"

namespace sluice {

struct Sequence::State {
  std::shared_ptr<Model::State> model;
  impl::KvCache cache;
  std::vector<float> logits;  // (vocab), or empty

  void check(std::span<const int32_t> tokens) const;
  // Reads checked tokens in passes; `use` gets the hidden states of each, and the index of its
  // first token.
  void read(std::span<const int32_t> tokens,
            const std::function<void(int64_t first, const impl::ConstTensor& hidden)>& use);
  void score_last(const impl::ConstTensor& hidden);
};

namespace {

impl::KvCache make_cache(Model::State& model, const Plan& plan, int64_t capacity) {
  model.check_logits();
  if (capacity < 0 || capacity > model.info.context)
    throw Error(fmt::format("a sequence of {} tokens does not fit a context of {}", capacity,
                            model.info.context),
                "0 for the whole context, or up to that many");
  const impl::Plan& ready = model.prepared(plan);
  return model.model.make_cache(1, capacity, ready.attention, ready.linear);
}

}  // namespace

void Sequence::State::check(std::span<const int32_t> tokens) const {
  if (tokens.empty()) throw Error("there are no tokens to append", "give one or more");
  if (std::ssize(tokens) > cache.capacity() - cache.length())
    throw Error(fmt::format("{} tokens after {} do not fit a sequence of {}", tokens.size(),
                            cache.length(), cache.capacity()),
                "a larger capacity or context, or fewer tokens");
  if (cache.length() > 0 && (model->info.is_encoder || cache.needs_whole_sequence()))
    throw Error("this model, or its plan, sees a sequence whole and takes no more tokens",
                "clear(), then append() all of them");
  model->check_ids(tokens);
}

void Sequence::State::read(
    std::span<const int32_t> tokens,
    const std::function<void(int64_t first, const impl::ConstTensor& hidden)>& use) {
  logits.clear();
  const bool whole = model->info.is_encoder || cache.needs_whole_sequence();
  impl::forward_in_passes(model->model, tokens, cache,
                          whole ? std::ssize(tokens) : impl::kPrefillTokens, use);
}

void Sequence::State::score_last(const impl::ConstTensor& hidden) {
  logits.resize(static_cast<size_t>(model->info.vocab));
  model->model.logits(hidden.rows_from(hidden.rows() - 1, 1),
                      impl::Tensor(logits.data(), impl::DType::kF32, {1, model->info.vocab}));
}

Sequence::Sequence(Model& model, const Plan& plan, int64_t capacity) {
  const std::shared_ptr<Model::State>& state = Access::of(model);
  state_ = std::make_unique<State>(State{state, make_cache(*state, plan, capacity), {}});
}
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

void Sequence::append(std::span<const int32_t> tokens) {
  State& state = *state_;
  state.check(tokens);
  state.read(tokens, [&](int64_t first, const impl::ConstTensor& hidden) {
    if (first + hidden.rows() == std::ssize(tokens)) state.score_last(hidden);
  });
}

std::vector<float> Sequence::append_scored(std::span<const int32_t> tokens) {
  State& state = *state_;
  state.check(tokens);
  const int64_t vocab = state.model->info.vocab;
  std::vector<float> all(tokens.size() * static_cast<size_t>(vocab));
  const impl::Tensor rows(all.data(), impl::DType::kF32, {std::ssize(tokens), vocab});
  state.read(tokens, [&](int64_t first, const impl::ConstTensor& hidden) {
    for (int64_t row = 0; row < hidden.rows(); row += impl::kScoreRows) {
      const int64_t n = std::min(impl::kScoreRows, hidden.rows() - row);
      state.model->model.logits(hidden.rows_from(row, n), rows.rows_from(first + row, n));
    }
  });
  state.logits.assign(all.end() - vocab, all.end());
  return all;
}

std::span<const float> Sequence::logits() const {
  if (state_->logits.empty())
    throw Error(
        "there are no logits: nothing was appended since the start, or since tokens were "
        "forgotten",
        "append() a token");
  return state_->logits;
}

int64_t Sequence::length() const { return state_->cache.length(); }
int64_t Sequence::capacity() const { return state_->cache.capacity(); }

void Sequence::clear() {
  state_->cache.truncate(0);
  state_->logits.clear();
}

void Sequence::truncate(int64_t length) {
  impl::KvCache& cache = state_->cache;
  if (length < 0 || length > cache.length())
    throw Error(fmt::format("a sequence of {} tokens cannot be cut to {}", cache.length(), length),
                "0 up to its length");
  if (length == cache.length()) return;
  if (length > 0 && !cache.all_dense())
    throw Error("a sequence whose plan is not dense forgets all tokens or none",
                "clear(), or a dense plan");
  cache.truncate(length);
  state_->logits.clear();
}

}  // namespace sluice
