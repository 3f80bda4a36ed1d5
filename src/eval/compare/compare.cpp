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
  base_loss_.add(token.base_loss);
  loss_.add(token.loss);
  log_ratio_.add(token.loss - token.base_loss);
  kl_.add(token.kl);
  kl_values_.add(token.kl);
  delta_p_.add(token.delta_p);
  delta_p_squared_.add(token.delta_p * token.delta_p);
  same_top_.add(token.same_top ? 1 : 0);
}

// Standard errors of exp(mean) and sqrt(mean) are first order in those of the mean.
double Comparison::base_ppl() const { return std::exp(base_loss_.mean()); }
double Comparison::base_ppl_stderr() const { return base_ppl() * base_loss_.standard_error(); }
double Comparison::ppl() const { return std::exp(loss_.mean()); }
double Comparison::ppl_stderr() const { return ppl() * loss_.standard_error(); }
double Comparison::ppl_ratio() const { return std::exp(log_ratio_.mean()); }
double Comparison::ppl_ratio_stderr() const { return ppl_ratio() * log_ratio_.standard_error(); }
double Comparison::delta_p_rms() const { return std::sqrt(delta_p_squared_.mean()); }
double Comparison::delta_p_rms_stderr() const {
  const double rms = delta_p_rms();
  return rms > 0 ? 0.5 * delta_p_squared_.standard_error() / rms : 0;
}

}  // namespace sluice::impl
