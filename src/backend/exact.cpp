#include "backend/exact.h"

#include <algorithm>
#include <cmath>

#include "backend/select.h"

namespace sluice::impl {
namespace {

constexpr size_t kMedianTokens = 256;

template <typename T>
double sum_of_squares(const T* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{to_float(x[i])} * double{to_float(x[i])};
  return sum;
}

template <typename A, typename B>
double unit_dot(const A* a, double inverse_a, const B* b, double inverse_b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += double{unit_element(to_float(a[i]), inverse_a)} *
           double{unit_element(to_float(b[i]), inverse_b)};
  return sum;
}

}  // namespace

void TokenSet::number_clusters(int64_t first) {
  for (auto t = static_cast<size_t>(first); t < status.size(); ++t)
    if (status[t] != TokenStatus::kRedundant) cluster[t] = static_cast<int32_t>(n_clusters++);
  for (auto t = static_cast<size_t>(first); t < status.size(); ++t)
    if (status[t] == TokenStatus::kRedundant) cluster[t] = cluster[static_cast<size_t>(owner[t])];
}

std::vector<uint8_t> membership(const TokenSet& set, int64_t first, int64_t n_tokens) {
  SLUICE_CHECK(first >= 0 && first + n_tokens <= set.n_tokens());
  std::vector<uint8_t> flags(static_cast<size_t>(n_tokens));
  for (int64_t i = 0; i < n_tokens; ++i)
    flags[static_cast<size_t>(i)] = set.in_set(first + i) ? 1 : 0;
  return flags;
}

std::vector<uint8_t> Inherited::flags(int64_t first, int64_t n_tokens) const {
  if (above_ != nullptr) return membership(above_->sets()[set_], first, n_tokens);
  SLUICE_CHECK(static_cast<int64_t>(flags_.size()) == n_tokens);
  return {flags_.begin(), flags_.end()};
}

double inverse_norm(const ConstTensor& rows, int64_t row) {
  const int64_t n = rows.row_elements();
  const double sum = rows.dtype() == DType::kBF16 ? sum_of_squares(rows.row<BFloat16>(row), n)
                                                  : sum_of_squares(rows.row<float>(row), n);
  return sum > 0 ? 1 / std::sqrt(sum) : 0;
}

double exact_cosine(const UnitRow& a, const UnitRow& b) {
  if (a.inverse_norm == 0 || b.inverse_norm == 0) return 0;
  const int64_t n = a.rows.row_elements();
  const bool narrow_a = a.rows.dtype() == DType::kBF16, narrow_b = b.rows.dtype() == DType::kBF16;
  const auto with_a = [&](const auto* x) {
    return narrow_b ? unit_dot(x, a.inverse_norm, b.rows.row<BFloat16>(b.row), b.inverse_norm, n)
                    : unit_dot(x, a.inverse_norm, b.rows.row<float>(b.row), b.inverse_norm, n);
  };
  return narrow_a ? with_a(a.rows.row<BFloat16>(a.row)) : with_a(a.rows.row<float>(a.row));
}

bool ExemptTokens::next(double norm) {
  const int64_t t = n_seen_++;
  if (t < sinks_) return true;
  if (ratio_ <= 0) return false;
  if (sorted_.size() < kMedianTokens)
    sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), norm), norm);
  const size_t n = sorted_.size();
  const double median = (sorted_[(n - 1) / 2] + sorted_[n / 2]) / 2;
  return norm > ratio_ * median;
}

}  // namespace sluice::impl
