#include "eval/compare/compare.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sluice::impl {
namespace {

size_t top_of(std::span<const float> scores) {
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

}  // namespace

void BaseRow::set(std::span<const float> scores) {
  scores_ = scores;
  probabilities_.resize(scores.size());
  top_ = top_of(scores);
  const double maximum = scores[top_];
  double total = 0;
  for (size_t i = 0; i < scores.size(); ++i)
    total += probabilities_[i] = std::exp(double{scores[i]} - maximum);
  for (double& p : probabilities_) p /= total;
  log_total_ = maximum + std::log(total);
}

TokenComparison BaseRow::against(std::span<const float> scores, int32_t next) const {
  SLUICE_CHECK(scores.size() == scores_.size());
  const size_t top = top_of(scores);
  const double maximum = scores[top];
  // KL = sum p (log p - log q) = sum p (x - y) - log_total(x) + log_total(y), x and y the scores.
  double total = 0, gap = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    total += std::exp(double{scores[i]} - maximum);
    // A score of -inf in both is a token that neither allows.
    if (probabilities_[i] > 0) gap += probabilities_[i] * (double{scores_[i]} - double{scores[i]});
  }
  const double log_total = maximum + std::log(total);
  const auto id = static_cast<size_t>(next);
  TokenComparison token{};
  token.base_loss = log_total_ - double{scores_[id]};
  token.loss = log_total - double{scores[id]};
  // Round-off can put a divergence near zero below it.
  token.kl = std::max(0.0, gap - (log_total_ - log_total));
  token.delta_p = std::exp(-token.loss) - std::exp(-token.base_loss);
  token.same_top = top == top_;
  return token;
}

void Comparison::add(const TokenComparison& token) {
  ++n_tokens_;
  for (size_t i = 0; i < kMetrics.size(); ++i) {
    const double x = kMetrics[i].of_token(token);
    if (!kMetrics[i].has_histogram()) {
      sums_[i].mean.add(x);
    } else {
      if (!sums_[i].values) sums_[i].values.emplace();
      sums_[i].values->add(x);
    }
  }
}

const Comparison::Sums& Comparison::sums_of(const Metric& metric) const {
  const auto row = static_cast<size_t>(&metric - kMetrics.data());
  SLUICE_CHECK(row < kMetrics.size());
  return sums_[row];
}

double Comparison::value(const Metric& metric) const {
  const Sums& sums = sums_of(metric);
  switch (metric.statistic) {
    case Metric::Statistic::kMean:
      return sums.mean.mean();
    case Metric::Statistic::kExpOfMean:
      return std::exp(sums.mean.mean());
    case Metric::Statistic::kRootOfMean:
      return std::sqrt(sums.mean.mean());
    case Metric::Statistic::kQuantile:
      return sums.values ? sums.values->quantile(metric.share) : 0;
    case Metric::Statistic::kMaximum:
      return sums.values ? sums.values->maximum() : 0;
  }
  SLUICE_CHECK(false);
}

// Errors of exp(mean) and sqrt(mean) are first order in that of the mean.
double Comparison::error(const Metric& metric) const {
  SLUICE_CHECK(metric.has_error());
  const double of_mean = sums_of(metric).mean.standard_error(), at = value(metric);
  if (metric.statistic == Metric::Statistic::kExpOfMean) return at * of_mean;
  if (metric.statistic == Metric::Statistic::kRootOfMean) return at > 0 ? 0.5 * of_mean / at : 0;
  return of_mean;
}

}  // namespace sluice::impl
