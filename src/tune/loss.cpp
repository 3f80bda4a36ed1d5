#include "tune/loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "eval/text/windows.h"
#include "ranks/divide.h"

namespace sluice::impl {
namespace {

// For scores and probabilities of the exact model. Where a vocabulary times a window is more, fewer
// predictions are compared.
constexpr int64_t kReferenceBytes = int64_t{512} << 20;
// For those of several windows.
constexpr int64_t kKeptBytes = int64_t{1} << 30;
// Neighbouring predictions say much the same of a change, and the output matrix takes longer than a
// layer.
constexpr int64_t kChangeScores = 256;
// For the residual streams between layers.
constexpr int64_t kResidualBytes = int64_t{2} << 30;

// n of the positions that predict a window's tokens: those of an answer, the others evenly spread.
std::vector<int32_t> positions_to_score(const TuneWindow& window, int64_t n) {
  if (window.masked()) {
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < n; ++i)
      positions.push_back(
          window.places[static_cast<size_t>((2 * i + 1) * window.n_predicted() / (2 * n))]);
    return positions;
  }
  const int64_t n_before = std::ssize(window.tokens) - 1 - window.n_answer();
  const int64_t n_spread = n - window.n_answer();
  SLUICE_CHECK(n_spread >= 0);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < n_spread; ++i)
    positions.push_back(static_cast<int32_t>((2 * i + 1) * n_before / (2 * n_spread)));
  for (int64_t i = 0; i < window.n_answer(); ++i)
    positions.push_back(static_cast<int32_t>(n_before + i));
  return positions;
}

}  // namespace

void UnitMean::add(int64_t unit, double sum, int64_t count) {
  units_[unit].sum += sum;
  units_[unit].count += count;
  sum_ += sum;
  count_ += count;
}

double UnitMean::mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

double UnitMean::standard_error() const {
  const auto n = static_cast<double>(units_.size());
  if (n < 2) return 0;
  double squares = 0;
  for (const auto& [id, unit] : units_) {
    const double off = unit.sum - mean() * static_cast<double>(unit.count);
    squares += off * off;
  }
  return std::sqrt(squares * n / (n - 1)) / static_cast<double>(count_);
}

void Loss::add(const LossPart& part) {
  for (const double value : part.kl_values) kl_values.add(std::max(0.0, value));
  kl.add(part.unit, part.kl, part.n_scored);
  log_ratio.add(part.unit, part.log_ratio, part.n_scored);
  needles.n += part.has_needle;
  needles.by_dense += part.by_dense;
  needles.found += part.found;
}

double Loss::ppl_ratio() const { return std::exp(log_ratio.mean()); }
double Loss::ppl_ratio_stderr() const { return ppl_ratio() * log_ratio.standard_error(); }

int64_t WindowReference::n_scored_in(const Model& model, const TuneWindow& window,
                                     Purpose purpose) {
  const int64_t most =
      std::max<int64_t>(64, kReferenceBytes / (model.spec().vocab * BaseScores::kBytes));
  return std::min(
      {window.n_predicted(), most, purpose == Purpose::kChanges ? kChangeScores : most});
}

WindowReference::WindowReference(Model& model, const TuneWindow& window, Purpose purpose)
    : model_(model), window_(window) {
  const std::span<const int32_t> inputs = window.inputs();
  const auto n = std::ssize(inputs);
  const ModelSpec& spec = model.spec();
  scored_ = positions_to_score(window, n_scored_in(model, window, purpose));
  base_scores_.emplace(model, n_scored());
  AttentionObserver keep;
  if (purpose == Purpose::kChanges) {
    const int64_t bytes = n * spec.d_model * element_bytes(DType::kF32);
    stride_ = (spec.n_layers * bytes + kResidualBytes - 1) / kResidualBytes;
    const int64_t n_kept = (spec.n_layers + stride_ - 1) / stride_;
    residuals_ = model.backend().allocate(DType::kF32, {n_kept * n, spec.d_model});
    std::vector<int32_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    keep = [this, all](const AttentionSeen& seen) {
      if (seen.layer % stride_ == 0)
        model_.backend().gather_rows(seen.residual, all, residual(seen.layer));
    };
  }
  KvCache cache = model.make_cache(1, n);
  const ConstTensor hidden = observed_forward(model, inputs, cache, std::move(keep));
  for_scored(hidden,
             [&](int64_t first, const ConstTensor& rows) { base_scores_->set(first, rows); });
  dense_finds_ = window.n_answer() > 0 && finds_answer(hidden);
}

bool WindowReference::finds_answer(const ConstTensor& hidden) {
  const int64_t n = window_.n_answer(), vocab = model_.spec().vocab;
  const Buffer scores = host_buffer(DType::kF32, {n, vocab});
  model_.logits(hidden.rows_from(window_.n_prompt - 1, n), scores.view());
  for (int64_t i = 0; i < n; ++i) {
    const float* row = scores.view().row<float>(i);
    if (std::max_element(row, row + vocab) - row !=
        window_.tokens[static_cast<size_t>(window_.n_prompt + i)])
      return false;
  }
  return true;
}

Tensor WindowReference::residual(int64_t layer) const {
  const int64_t n = std::ssize(window_.inputs());
  return residuals_.view().rows_from(layer / stride_ * n, n);
}

void WindowReference::for_scored(
    const ConstTensor& hidden,
    const std::function<void(int64_t first, const ConstTensor& rows)>& use) {
  Backend& backend = model_.backend();
  const Buffer rows = backend.allocate(hidden.dtype(), {kScoreRows, hidden.row_elements()});
  for (int64_t first = 0; first < n_scored(); first += kScoreRows) {
    const int64_t n = std::min(kScoreRows, n_scored() - first);
    const Tensor some = rows.view().rows_from(0, n);
    backend.gather_rows(
        hidden, std::span(scored_).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
        some);
    use(first, some);
  }
}

int32_t WindowReference::truth_at(int32_t position) const {
  if (!window_.masked()) return window_.tokens[static_cast<size_t>(position) + 1];
  const auto at = std::lower_bound(window_.places.begin(), window_.places.end(), position);
  return window_.truth[static_cast<size_t>(at - window_.places.begin())];
}

LossPart WindowReference::loss_of(const Plan& plan, int64_t first_layer) {
  const std::span<const int32_t> inputs = window_.inputs();
  KvCache cache = model_.make_cache(1, std::ssize(inputs), plan.attention, plan.linear);
  const int64_t first_kept = first_layer / stride_ * stride_;
  LossPart part{.unit = window_.unit,
                .n_scored = n_scored(),
                .kl_values = {},
                .has_needle = window_.n_answer() > 0,
                .by_dense = dense_finds_,
                .found = dense_finds_};
  const int64_t first_of_answer = n_scored() - window_.n_answer();
  std::vector<int32_t> next;
  for_scored(first_kept == 0 ? model_.forward(inputs, cache)
                             : model_.forward_from(first_kept, residual(first_kept), cache),
             [&](int64_t first, const ConstTensor& rows) {
               next.clear();
               for (int64_t i = first; i < first + rows.rows(); ++i)
                 next.push_back(truth_at(scored_[static_cast<size_t>(i)]));
               int64_t i = first;
               for (const TokenComparison& token : base_scores_->compare(first, rows, next)) {
                 if (i++ >= first_of_answer) part.found = part.found && token.same_top;
                 part.kl += token.kl;
                 part.kl_values.push_back(token.kl);
                 part.log_ratio += token.loss - token.base_loss;
               }
             });
  check_finite(part.kl + part.log_ratio);
  return part;
}

double WindowReference::kl_sum(const Plan& plan, int64_t first_layer) {
  Loss loss;
  loss.add(loss_of(plan, first_layer));
  return loss.kl.mean() * static_cast<double>(loss.kl.count());
}

Loss no_loss(const Model& model, const std::vector<TuneWindow>& windows) {
  Loss loss;
  for (const TuneWindow& window : windows) {
    const int64_t n = WindowReference::n_scored_in(model, window, WindowReference::Purpose::kPlans);
    loss.kl.add(window.unit, 0, n);
    loss.log_ratio.add(window.unit, 0, n);
  }
  return loss;
}

std::vector<LossPart> PlanLosses::on_window(size_t window, std::span<const Plan> plans) {
  std::unique_ptr<WindowReference> reference = std::move(kept_[window]);
  const bool was_kept = reference != nullptr;
  if (!was_kept)
    reference = std::make_unique<WindowReference>(model_, windows_[window],
                                                  WindowReference::Purpose::kPlans);
  std::vector<LossPart> parts;
  for (const Plan& plan : plans) parts.push_back(reference->loss_of(plan, 0));
  const int64_t bytes = reference->n_scored() * model_.spec().vocab * BaseScores::kBytes;
  if (!was_kept && kept_bytes_ + bytes > kKeptBytes) return parts;
  if (!was_kept) kept_bytes_ += bytes;
  kept_[window] = std::move(reference);
  return parts;
}

std::vector<Loss> PlanLosses::of(std::span<const Plan> plans, size_t n_windows) {
  std::vector<Loss> losses(plans.size());
  size_t n_begun = 0;
  divide<std::vector<LossPart>>(
      ranks_, [&] { return n_begun < std::min(n_windows, windows_.size()) && ++n_begun > 0; },
      [&] { return on_window(n_begun - 1, plans); },
      [&](const std::vector<LossPart>& parts) {
        for (size_t i = 0; i < parts.size(); ++i) losses[i].add(parts[i]);
      });
  return losses;
}

}  // namespace sluice::impl
