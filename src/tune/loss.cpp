#include "tune/loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/threads.h"
#include "eval/windows.h"

namespace sluice {
namespace {

// For scores and probabilities of the exact model. Where a vocabulary times a window is more, fewer
// predictions are compared.
constexpr int64_t kReferenceBytes = int64_t{512} << 20;
constexpr int64_t kBytesPerScore = 2 * sizeof(float) + sizeof(double);
// For those of several windows.
constexpr int64_t kKeptBytes = int64_t{1} << 30;
// Neighbouring predictions say much the same of a change, and the output matrix takes longer than a
// layer.
constexpr int64_t kChangeScores = 256;
// For the residual streams between layers.
constexpr int64_t kResidualBytes = int64_t{2} << 30;

// n of the positions 0 … n_tokens - 1, evenly spread.
std::vector<int32_t> positions_to_score(int64_t n_tokens, int64_t n) {
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < n; ++i)
    positions.push_back(static_cast<int32_t>((2 * i + 1) * n_tokens / (2 * n)));
  return positions;
}

std::span<const float> row_of(const Tensor& of, size_t row) {
  return {of.row<float>(static_cast<int64_t>(row)), static_cast<size_t>(of.row_elements())};
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

double Loss::ppl_ratio() const { return std::exp(log_ratio.mean()); }
double Loss::ppl_ratio_stderr() const { return ppl_ratio() * log_ratio.standard_error(); }

int64_t WindowReference::n_scored_in(const Model& model, const TuneWindow& window,
                                     Purpose purpose) {
  const int64_t most =
      std::max<int64_t>(64, kReferenceBytes / (model.spec().vocab * kBytesPerScore));
  return std::min(
      {std::ssize(window.tokens) - 1, most, purpose == Purpose::kChanges ? kChangeScores : most});
}

WindowReference::WindowReference(Model& model, const TuneWindow& window, Purpose purpose)
    : model_(model), window_(window) {
  const std::span<const int32_t> inputs(window.tokens.data(), window.tokens.size() - 1);
  const auto n = std::ssize(inputs);
  const ModelSpec& spec = model.spec();
  scored_ = positions_to_score(n, n_scored_in(model, window, purpose));
  base_scores_ = host_buffer(DType::kF32, {n_scored(), spec.vocab});
  scores_ = host_buffer(DType::kF32, {n_scored(), spec.vocab});
  base_rows_.resize(scored_.size());
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
  score(observed_forward(model, inputs, cache, std::move(keep)));
  std::swap(base_scores_, scores_);
  parallel_for(n_scored(), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      base_rows_[i].set(row_of(base_scores_.view(), i));
  });
}

Tensor WindowReference::residual(int64_t layer) const {
  const int64_t n = std::ssize(window_.tokens) - 1;
  return residuals_.view().rows_from(layer / stride_ * n, n);
}

void WindowReference::score(const ConstTensor& hidden) {
  Backend& backend = model_.backend();
  const Buffer rows = backend.allocate(hidden.dtype(), {kScoreRows, hidden.row_elements()});
  for (int64_t first = 0; first < n_scored(); first += kScoreRows) {
    const int64_t n = std::min(kScoreRows, n_scored() - first);
    const Tensor some = rows.view().rows_from(0, n);
    backend.gather_rows(
        hidden, std::span(scored_).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
        some);
    model_.logits(some, scores_.view().rows_from(first, n));
  }
}

void WindowReference::add_loss(const Plan& plan, int64_t first_layer, Loss& loss) {
  const std::span<const int32_t> inputs(window_.tokens.data(), window_.tokens.size() - 1);
  KvCache cache = model_.make_cache(1, std::ssize(inputs), plan.attention, plan.linear);
  const int64_t first_kept = first_layer / stride_ * stride_;
  score(first_kept == 0 ? model_.forward(inputs, cache)
                        : model_.forward_from(first_kept, residual(first_kept), cache));
  std::vector<double> kl(scored_.size()), log_ratio(scored_.size());
  parallel_for(n_scored(), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const int32_t next = window_.tokens[static_cast<size_t>(scored_[i]) + 1];
      const TokenComparison found = base_rows_[i].against(row_of(scores_.view(), i), next);
      kl[i] = found.kl;
      log_ratio[i] = found.loss - found.base_loss;
    }
  });
  const auto sum = [](const std::vector<double>& of) {
    return std::accumulate(of.begin(), of.end(), 0.0);
  };
  check_finite(sum(kl) + sum(log_ratio));
  loss.kl.add(window_.unit, sum(kl), n_scored());
  loss.log_ratio.add(window_.unit, sum(log_ratio), n_scored());
}

double WindowReference::kl_sum(const Plan& plan, int64_t first_layer) {
  Loss loss;
  add_loss(plan, first_layer, loss);
  return loss.kl.mean() * static_cast<double>(loss.kl.count());
}

std::vector<Loss> PlanLosses::of(std::span<const Plan> plans, size_t n_windows) {
  std::vector<Loss> losses(plans.size());
  for (size_t i = 0; i < std::min(n_windows, windows_.size()); ++i) {
    std::unique_ptr<WindowReference> reference = std::move(kept_[i]);
    const bool was_kept = reference != nullptr;
    if (!was_kept)
      reference =
          std::make_unique<WindowReference>(model_, windows_[i], WindowReference::Purpose::kPlans);
    for (size_t plan = 0; plan < plans.size(); ++plan)
      reference->add_loss(plans[plan], 0, losses[plan]);
    if (!was_kept) {
      const int64_t bytes = reference->n_scored() * model_.spec().vocab * kBytesPerScore;
      if (kept_bytes_ + bytes > kKeptBytes) continue;
      kept_bytes_ += bytes;
    }
    kept_[i] = std::move(reference);
  }
  return losses;
}

}  // namespace sluice
