// How far one set of predictions is from another: the metrics of docs/results.md, token by token.
//
// "Base" is the exact model, the other one its accelerated form; both saw the same tokens.

#pragma once

#include <span>
#include <vector>

#include "backend/scores.h"
#include "core/quantiles.h"
#include "eval/compare/running_mean.h"

namespace sluice::impl {

// One row of the base's scores, to be compared with rows of others. Everything is computed in
// float64; scores that are equal give exactly 0.
class BaseRow {
 public:
  void set(std::span<const float> scores);  // (vocab), kept by reference
  TokenComparison against(std::span<const float> scores, int32_t next) const;

 private:
  std::span<const float> scores_;
  std::vector<double> probabilities_;  // (vocab)
  double log_total_ = 0;               // log(sum(exp(scores)))
  size_t top_ = 0;
};

// All tokens so far. Standard errors treat tokens as independent; those of a ratio or difference
// are of paired tokens.
class Comparison {
 public:
  void add(const TokenComparison& token);

  int64_t n_tokens() const { return kl_.count(); }
  const RunningMean& base_loss() const { return base_loss_; }  // nats per token
  double base_ppl() const;
  double base_ppl_stderr() const;
  double ppl() const;
  double ppl_stderr() const;
  const RunningMean& log_ratio() const { return log_ratio_; }  // ln(ppl / base ppl)
  double ppl_ratio() const;
  double ppl_ratio_stderr() const;
  const RunningMean& kl() const { return kl_; }
  const LogHistogram& kl_values() const { return kl_values_; }
  const RunningMean& delta_p() const { return delta_p_; }
  double delta_p_rms() const;
  double delta_p_rms_stderr() const;
  const RunningMean& same_top() const { return same_top_; }

 private:
  RunningMean base_loss_, loss_, log_ratio_, kl_, delta_p_, delta_p_squared_, same_top_;
  LogHistogram kl_values_;
};

}  // namespace sluice::impl
