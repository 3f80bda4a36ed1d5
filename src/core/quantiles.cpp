#include "core/quantiles.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sluice::impl {
namespace {

double bin_of(double x) {
  return std::floor(std::log(x / LogHistogram::kSmallest) / std::log(LogHistogram::kStep));
}

}  // namespace

LogHistogram::LogHistogram() : bins_(static_cast<size_t>(bin_of(kLargest)) + 1) {}

void LogHistogram::add(double x) {
  SLUICE_CHECK(x >= 0);
  ++count_;
  maximum_ = std::max(maximum_, x);
  if (x < kSmallest)
    ++n_zeros_;
  else
    ++bins_[static_cast<size_t>(bin_of(std::min(x, kLargest)))];
}

LogHistogram& LogHistogram::operator+=(const LogHistogram& other) {
  for (size_t i = 0; i < bins_.size(); ++i) bins_[i] += other.bins_[i];
  n_zeros_ += other.n_zeros_;
  count_ += other.count_;
  maximum_ = std::max(maximum_, other.maximum_);
  return *this;
}

std::vector<LogHistogram::Bin> LogHistogram::filled_bins() const {
  std::vector<Bin> filled;
  for (size_t i = 0; i < bins_.size(); ++i)
    if (bins_[i] > 0) filled.push_back({i, bins_[i]});
  return filled;
}

void LogHistogram::set_bins(const std::vector<Bin>& filled) {
  std::fill(bins_.begin(), bins_.end(), 0);
  for (const Bin& bin : filled) bins_.at(bin.index) = bin.count;
}

double LogHistogram::quantile(double q) const {
  SLUICE_CHECK(q > 0 && q <= 1);
  const auto rank = static_cast<int64_t>(std::ceil(q * static_cast<double>(count_)));
  int64_t n_seen = n_zeros_;
  if (n_seen >= rank) return 0;
  size_t bin = 0;
  while ((n_seen += bins_[bin]) < rank) ++bin;
  return std::min(maximum_, kSmallest * std::pow(kStep, static_cast<double>(bin) + 0.5));
}

}  // namespace sluice::impl
