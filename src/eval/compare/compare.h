// How far one set of predictions is from another: tokens compared, and the metrics of all of them.
//
// "Base" is the exact model, the other one its accelerated form; both saw the same tokens.

#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "core/quantiles.h"
#include "eval/compare/metrics.h"
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

// All tokens so far, summed for every row of kMetrics.
class Comparison {
 public:
  void add(const TokenComparison& token);

  int64_t n_tokens() const { return n_tokens_; }
  // metric: a row of kMetrics.
  double value(const Metric& metric) const;
  // The standard error; needs has_error(). Tokens are treated as independent; the error of a ratio
  // or difference is that of paired tokens.
  double error(const Metric& metric) const;

 private:
  struct Sums {
    RunningMean mean;
    std::optional<LogHistogram> values;  // where the metric needs them
  };
  const Sums& sums_of(const Metric& metric) const;

  int64_t n_tokens_ = 0;
  std::array<Sums, kMetrics.size()> sums_;
};

}  // namespace sluice::impl
