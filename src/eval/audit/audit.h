// The statistics of a run-time audit: the mean of measured KLs, its interval, and whether a
// contract is in danger. docs/algorithm.md, section 7.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sluice::impl {

// The mean of the samples and its 95% interval. Of fewer than two samples the interval says
// nothing: 0 to infinity.
struct AuditInterval {
  int64_t n_samples = 0;
  double mean = 0, low = 0, high = 0;
};

// KLs are skewed: most are small and a few make up most of the mean. A symmetric interval ends too
// low for them. This one is Hall's: the t statistic is carried through a cubic that takes the skew
// of the samples out, and its quantiles come back through the inverse. Every look at it is taken
// for itself: it is not corrected for being looked at again and again.
class Audit {
 public:
  void add(double kl) { samples_.push_back(kl); }
  void restart() { samples_.clear(); }
  int64_t n_samples() const { return static_cast<int64_t>(samples_.size()); }
  AuditInterval interval() const;
  // Whether the interval reaches beyond max_kl and lies above half of it: one that begins lower is
  // too wide to say much. Never before kLeastSamples.
  bool in_danger(double max_kl) const;

  static constexpr int64_t kLeastSamples = 4;

 private:
  std::vector<double> samples_;
};

// The quantile of Student's t that 97.5% lie below, to three digits from 2 degrees of freedom on.
double student_quantile(int64_t degrees_of_freedom);

}  // namespace sluice::impl
