#include "eval/audit/audited_steps.h"

#include <algorithm>

#include "core/error.h"
#include "eval/text/windows.h"

namespace sluice {
namespace {

// The delta that follows a contract in danger. After six halvings everything is read.
constexpr double kLeastFactor = 1.0 / 64;

double next_factor(double factor) { return factor > kLeastFactor ? factor / 2 : 0; }

bool refines(const AttentionPlan& plan) {
  return std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const LayerPlan& layer) { return layer.mode == AttentionMode::kRefine; });
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
}

AuditedSteps::AuditedSteps(Model& model, const AuditOptions& options,
                           std::function<void(const AuditRecord&)> on_tightened)
    : model_(model),
      options_(options),
      on_tightened_(std::move(on_tightened)),
      random_(options.seed) {
  SLUICE_CHECK(options.every > 0 && options.every <= kMostAudited);
}

void AuditedSteps::step(std::span<const int32_t> tokens, KvCache& cache, const Tensor& scores) {
  SLUICE_CHECK(cache.n_batch() == 1);
  SLUICE_CHECK(static_cast<int64_t>(tokens.size()) == cache.length() + 1);
  const auto vocab = static_cast<size_t>(model_.spec().vocab);
  const int64_t index = n_steps_++ % options_.every;
  const std::span<const int32_t> token = tokens.last(1);
  if (options_.mode == AuditMode::kStep && index == 0)
    chosen_ = static_cast<int64_t>(random_() % static_cast<uint64_t>(options_.every));
  const bool chosen = options_.mode == AuditMode::kStep && index == chosen_;
  if (chosen) score_exactly(model_.forward_exact(token, cache));
  model_.logits(model_.forward(token, cache), scores);
  const std::span<const float> found(scores.row<float>(0), vocab);
  if (chosen) {
    ++n_compared_;
    add(kl_to_base(found), cache);
  }
  if (options_.mode == AuditMode::kStep) return;
  scores_.insert(scores_.end(), found.begin(), found.end());
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
  const int64_t vocab = model_.spec().vocab, n = std::ssize(prompt);
  const int64_t n_groups = std::min(n / options_.every, kMostPromptAudited);
  prompt_scores_.reserve(static_cast<size_t>(n_groups * vocab));
  for (int64_t i = std::ssize(prompt_positions_); i < n_groups; ++i) {
    // A draw of its own for each group: it does not depend on the passes.
    const int64_t begin = i * n / n_groups, end = (i + 1) * n / n_groups;
    std::mt19937_64 random(options_.seed + static_cast<uint64_t>(i));
    const int64_t at = begin + static_cast<int64_t>(random() % static_cast<uint64_t>(end - begin));
    if (at >= first + hidden.rows()) return;
    SLUICE_CHECK(at >= first);
    prompt_positions_.push_back(at);
    prompt_scores_.resize(prompt_positions_.size() * static_cast<size_t>(vocab));
    model_.logits(hidden.rows_from(at - first, 1),
                  Tensor(prompt_scores_.data() + std::ssize(prompt_scores_) - vocab, DType::kF32,
                         {1, vocab}));
  }
}

void AuditedSteps::finish_prompt() {
  if (!prompt_positions_.empty()) follow(prompt_, n_prompt());
}

// hidden: the exact model's, of the tokens from `first` on.
void AuditedSteps::compare_prompt(int64_t first, const ConstTensor& hidden) {
  const auto vocab = static_cast<size_t>(model_.spec().vocab);
  for (size_t i = 0; i < prompt_positions_.size(); ++i) {
    const int64_t row = prompt_positions_[i] - first;
    if (row < 0 || row >= hidden.rows()) continue;
    score_exactly(hidden.rows_from(row, 1));
    const double kl = kl_to_base(std::span(prompt_scores_).subspan(i * vocab, vocab));
    check_finite(kl);
    prompt_audit_.add(kl);
  }
}

void AuditedSteps::score_exactly(const ConstTensor& hidden) {
  const int64_t vocab = model_.spec().vocab;
  base_.resize(static_cast<size_t>(vocab));
  model_.logits(hidden, Tensor(base_.data(), DType::kF32, {1, vocab}));
}

double AuditedSteps::kl_to_base(std::span<const float> found) const {
  BaseRow base;
  base.set(base_);
  return base.against(found, 0).kl;
}

void AuditedSteps::compare_pass(std::span<const int32_t> tokens, KvCache& cache) {
  const int64_t vocab = model_.spec().vocab, n = std::ssize(scores_) / vocab;
  const size_t first = tokens.size() - static_cast<size_t>(n);
  follow(tokens.first(first), cache);
  const ConstTensor hidden = model_.forward(tokens.subspan(first), *exact_);
  BaseRow base;
  RunningMean mean;
  for (int64_t begin = 0; begin < n; begin += kScoreRows) {
    const int64_t rows = std::min(kScoreRows, n - begin);
    base_.resize(static_cast<size_t>(rows * vocab));
    model_.logits(hidden.rows_from(begin, rows), Tensor(base_.data(), DType::kF32, {rows, vocab}));
    const auto row_of = [&](const std::vector<float>& from, int64_t row) {
      return std::span(from).subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab));
    };
    for (int64_t i = 0; i < rows; ++i) {
      base.set(row_of(base_, i));
      mean.add(base.against(row_of(scores_, begin + i), 0).kl);
    }
  }
  scores_.clear();
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

}  // namespace sluice
