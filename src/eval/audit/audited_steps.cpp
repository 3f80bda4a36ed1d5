#include "eval/audit/audited_steps.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "eval/text/windows.h"

namespace sluice::impl {
namespace {

// The delta that follows a contract in danger. After six halvings everything is read.
constexpr double kLeastFactor = 1.0 / 64;

// In place of tokens that follow: only the KL is asked for.
constexpr std::array<int32_t, kScoreRows> kNoNext = {};

double next_factor(double factor) { return factor > kLeastFactor ? factor / 2 : 0; }

bool refines(const AttentionPlan& plan) {
  return std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const LayerPlan& layer) { return layer.mode == AttentionMode::kRefine; });
}

// Into row `row` of `to`, which has room for n_rows.
void keep_row(Backend& backend, const ConstTensor& from, int64_t n_rows, int64_t row, Buffer& to) {
  if (!to.defined()) to = backend.allocate(from.dtype(), {n_rows, from.row_elements()});
  backend.gather_rows(from, std::array<int32_t, 1>{0}, to.view().rows_from(row, 1));
}

}  // namespace

std::string_view audit_mode_name(AuditMode mode) {
  return mode == AuditMode::kReplay ? "replay" : "step";
}

std::optional<AuditMode> audit_mode_of(std::string_view name) {
  for (const AuditMode mode : {AuditMode::kReplay, AuditMode::kStep})
    if (audit_mode_name(mode) == name) return mode;
  return {};
}

void check_audit(const AuditOptions& options, const AttentionPlan& plan) {
  if (options.mode == AuditMode::kStep && !plan.keeps_every_key())
    throw Error("a step cannot be audited where attention drops keys for good",
                "--audit-mode replay, or --attention refine");
  if (options.mode == AuditMode::kStep && plan.all_dense() && !plan.all_exact())
    throw Error(
        "an exact step reads keys and values as they are kept, and would miss what int8 "
        "loses",
        "--audit-mode replay");
}

AuditedSteps::AuditedSteps(Model& model, const AuditOptions& options,
                           std::function<void(const AuditRecord&)> on_tightened)
    : model_(model),
      options_(options),
      on_tightened_(std::move(on_tightened)),
      random_(options.seed),
      scores_(model, options.mode == AuditMode::kStep ? 1 : kScoreRows) {
  SLUICE_CHECK(options.every > 0 && options.every <= kMostAudited);
}

void AuditedSteps::step(std::span<const int32_t> tokens, KvCache& cache, const Tensor& scores) {
  SLUICE_CHECK(cache.n_batch() == 1);
  SLUICE_CHECK(static_cast<int64_t>(tokens.size()) == cache.length() + 1);
  ++n_steps_;
  const int64_t index = n_in_pass_;
  n_in_pass_ = (n_in_pass_ + 1) % options_.every;
  const std::span<const int32_t> token = tokens.last(1);
  if (options_.mode == AuditMode::kStep && index == 0)
    chosen_ = static_cast<int64_t>(random_() % static_cast<uint64_t>(options_.every));
  const bool chosen = options_.mode == AuditMode::kStep && index == chosen_;
  if (chosen) scores_.set(0, model_.forward_exact(token, cache));
  const ConstTensor hidden = model_.forward(token, cache);
  model_.logits(hidden, scores);
  if (chosen) {
    ++n_compared_;
    add(scores_.compare(0, hidden, std::span(kNoNext).first(1)).front().kl, cache);
  }
  if (options_.mode == AuditMode::kStep) return;
  keep_row(model_.backend(), hidden, options_.every, index, hidden_);
  if (index + 1 == options_.every) compare_pass(tokens, cache);
}

void AuditedSteps::follow(std::span<const int32_t> tokens, const KvCache& cache) {
  if (options_.mode == AuditMode::kReplay) follow(tokens, cache.capacity());
}

void AuditedSteps::follow(std::span<const int32_t> tokens, int64_t capacity) {
  if (!exact_) exact_.emplace(model_.make_cache(1, capacity));
  while (exact_->length() < static_cast<int64_t>(tokens.size())) {
    const int64_t first = exact_->length();
    const auto rest = tokens.subspan(static_cast<size_t>(first));
    compare_prompt(first,
                   model_.forward(rest.first(std::min<size_t>(rest.size(), kPassTokens)), *exact_));
  }
}

void AuditedSteps::read_prompt(std::span<const int32_t> prompt, int64_t first,
                               const ConstTensor& hidden) {
  if (options_.mode != AuditMode::kReplay) return;
  prompt_.assign(prompt.begin(), prompt.end());
  const int64_t n = std::ssize(prompt);
  const int64_t n_groups = std::min(n / options_.every, kMostPromptAudited);
  for (int64_t i = std::ssize(prompt_positions_); i < n_groups; ++i) {
    // A draw of its own for each group: it does not depend on the passes.
    const int64_t begin = i * n / n_groups, end = (i + 1) * n / n_groups;
    std::mt19937_64 random(options_.seed + static_cast<uint64_t>(i));
    const int64_t at = begin + static_cast<int64_t>(random() % static_cast<uint64_t>(end - begin));
    if (at >= first + hidden.rows()) return;
    SLUICE_CHECK(at >= first);
    prompt_positions_.push_back(at);
    keep_row(model_.backend(), hidden.rows_from(at - first, 1), n_groups, i, prompt_hidden_);
  }
}

void AuditedSteps::finish_prompt() {
  if (!prompt_positions_.empty()) follow(prompt_, n_prompt());
}

// hidden: the exact model's, of the tokens from `first` on.
void AuditedSteps::compare_prompt(int64_t first, const ConstTensor& hidden) {
  const auto at = [&](int64_t position) {
    return std::lower_bound(prompt_positions_.begin(), prompt_positions_.end(), position);
  };
  const auto begin = at(first), end = at(first + hidden.rows());
  if (begin == end) return;
  std::vector<int32_t> rows;
  for (auto i = begin; i != end; ++i) rows.push_back(static_cast<int32_t>(*i - first));
  const Buffer exact =
      model_.backend().allocate(hidden.dtype(), {std::ssize(rows), hidden.row_elements()});
  model_.backend().gather_rows(hidden, rows, exact.view());
  const ConstTensor plan =
      prompt_hidden_.view().rows_from(begin - prompt_positions_.begin(), std::ssize(rows));
  for (const double kl : compare(exact.view(), plan)) prompt_audit_.add(kl);
}

std::vector<double> AuditedSteps::compare(const ConstTensor& exact, const ConstTensor& plan) {
  std::vector<double> kls;
  for (int64_t first = 0; first < exact.rows(); first += kScoreRows) {
    const int64_t n = std::min(kScoreRows, exact.rows() - first);
    scores_.set(0, exact.rows_from(first, n));
    const std::span<const int32_t> next = std::span(kNoNext).first(static_cast<size_t>(n));
    for (const TokenComparison& token : scores_.compare(0, plan.rows_from(first, n), next)) {
      check_finite(token.kl);
      kls.push_back(token.kl);
    }
  }
  return kls;
}

void AuditedSteps::compare_pass(std::span<const int32_t> tokens, KvCache& cache) {
  const int64_t n = options_.every;
  const size_t first = tokens.size() - static_cast<size_t>(n);
  follow(tokens.first(first), cache);
  RunningMean mean;
  for (const double kl : compare(model_.forward(tokens.subspan(first), *exact_), hidden_.view()))
    mean.add(kl);
  n_compared_ += n;
  add(mean.mean(), cache);
}

void AuditedSteps::add(double kl, KvCache& cache) {
  check_finite(kl);
  audit_.add(kl);
  AuditRecord record{
      .position = cache.length(), .kl = audit_.interval(), .delta_factor = delta_factor_};
  record.tightened = options_.max_kl && delta_factor_ > 0 && refines(cache.plan()) &&
                     audit_.in_danger(*options_.max_kl);
  if (record.tightened) {
    delta_factor_ = record.delta_factor = next_factor(delta_factor_);
    cache.set_delta_factor(delta_factor_);
    audit_.restart();
    if (on_tightened_) on_tightened_(record);
  }
  records_.push_back(record);
}

void run_audited(AuditedSteps& audit, GenerateOptions& options) {
  options.plan.attention.audited = true;
  options.step = [&audit](std::span<const int32_t> tokens, KvCache& cache, const Tensor& scores) {
    audit.step(tokens, cache, scores);
  };
  options.prompt_pass = [&audit](std::span<const int32_t> prompt, int64_t first,
                                 const ConstTensor& hidden) {
    audit.read_prompt(prompt, first, hidden);
  };
}

}  // namespace sluice::impl
