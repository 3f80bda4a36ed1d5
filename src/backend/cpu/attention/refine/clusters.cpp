#include "backend/cpu/attention/refine/clusters.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "backend/cpu/primitives/rows.h"
#include "backend/cpu/primitives/score_rows.h"
#include "backend/refine.h"
#include "core/dtype.h"
#include "core/error.h"

namespace sluice::impl::cpu::refine {
namespace {

float dot(const float* a, const float* b, int64_t dim) {
  float sum;
  primitives::dot_rows(a, b, dim, 1, dim, &sum);
  return sum;
}

// Halves a segment by rank along the leading direction of each part until every part is one page.
class Splitter {
 public:
  Splitter(const float* keys, int64_t n, int64_t dim, int64_t page)
      : keys_(keys),
        dim_(dim),
        page_(page),
        rows_(static_cast<size_t>(n * dim)),
        along_(static_cast<size_t>(n)),
        rank_(static_cast<size_t>(n)),
        mean_(static_cast<size_t>(dim)),
        direction_(static_cast<size_t>(dim)),
        next_(static_cast<size_t>(dim)) {}

  void split(std::span<int32_t> group) {
    const int64_t n = static_cast<int64_t>(group.size()), n_pages = n / page_;
    if (n_pages <= 1) {
      std::sort(group.begin(), group.end());
      return;
    }
    project(group);
    // Of equal projections the earlier row comes first. One that is no number counts as 0.
    for (size_t i = 0; i < group.size(); ++i)
      rank_[i] = {std::isnan(along_[i]) ? 0.0f : along_[i], group[i]};
    const int64_t middle = (n_pages + 1) / 2 * page_;
    std::nth_element(rank_.begin(), rank_.begin() + middle, rank_.begin() + n);
    for (size_t i = 0; i < group.size(); ++i) group[i] = rank_[i].second;
    split(group.first(static_cast<size_t>(middle)));
    split(group.subspan(static_cast<size_t>(middle)));
  }

 private:
  // along_ = projections of a group's deviations on its leading direction: power steps on the
  // covariance from the key that is furthest from the mean. Zeros where all keys are equal.
  void project(std::span<const int32_t> group) {
    const auto n = static_cast<int64_t>(group.size());
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(row(i), keys_ + group[static_cast<size_t>(i)] * dim_, row_bytes());
    mean_rows(rows_.data(), n, dim_, mean_.data());
    primitives::scale(-1, dim_, mean_.data());
    int64_t furthest = 0;
    float largest = -1;
    for (int64_t i = 0; i < n; ++i) {
      primitives::add(mean_.data(), dim_, row(i));
      const float distance = dot(row(i), row(i), dim_);
      if (distance > largest) furthest = i;
      largest = std::max(largest, distance);
    }
    std::memcpy(direction_.data(), row(furthest), row_bytes());
    for (int step = 0; step < kPowerSteps; ++step) {
      const float norm = std::sqrt(dot(direction_.data(), direction_.data(), dim_));
      if (norm == 0) break;
      primitives::scale(1 / norm, dim_, direction_.data());
      primitives::dot_rows(direction_.data(), rows_.data(), dim_, n, dim_, along_.data());
      std::fill(next_.begin(), next_.end(), 0.0f);
      primitives::mix_rows(along_.data(), rows_.data(), dim_, n, dim_, next_.data());
      direction_.swap(next_);
    }
    primitives::dot_rows(direction_.data(), rows_.data(), dim_, n, dim_, along_.data());
  }
  float* row(int64_t i) { return rows_.data() + i * dim_; }
  size_t row_bytes() const { return static_cast<size_t>(dim_) * sizeof(float); }

  const float* keys_;  // (n, dim)
  int64_t dim_, page_;
  std::vector<float> rows_;                      // (n, dim) deviations of a group
  std::vector<float> along_;                     // (n)
  std::vector<std::pair<float, int32_t>> rank_;  // (n)
  std::vector<float> mean_, direction_, next_;   // (dim)
};

// (n, min(dim, kSplitDims)): the dimensions in which the keys vary most, rounded to bf16; of equal
// ones the first.
std::vector<float> widest_dims(const float* keys, int64_t n, int64_t dim) {
  std::vector<std::pair<double, int64_t>> dims;  // variance, negated, and dimension
  for (const double variance : variances_of(keys, n, dim))
    dims.emplace_back(std::isnan(variance) ? 0 : -variance, std::ssize(dims));
  const auto kept = static_cast<size_t>(std::min(dim, kSplitDims));
  std::sort(dims.begin(), dims.end());
  std::vector<float> narrow(static_cast<size_t>(n) * kept);
  for (int64_t i = 0; i < n; ++i)
    for (size_t j = 0; j < kept; ++j)
      narrow[static_cast<size_t>(i) * kept + j] =
          to_float(to_bfloat16(keys[i * dim + dims[j].second]));
  return narrow;
}

}  // namespace

void mean_rows(const float* rows, int64_t n, int64_t dim, float* out) {
  thread_local std::vector<float> ones;
  ones.assign(static_cast<size_t>(n), 1.0f);
  std::fill(out, out + dim, 0.0f);
  primitives::mix_rows(ones.data(), rows, dim, n, dim, out);
  primitives::scale(1 / static_cast<float>(n), dim, out);
}

std::vector<int32_t> cluster_keys(const float* keys, int64_t n, int64_t dim, int64_t page) {
  SLUICE_CHECK(n % page == 0);
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const std::vector<float> narrow = widest_dims(keys, n, dim);
  Splitter(narrow.data(), n, std::min(dim, kSplitDims), page).split(order);
  return order;
}

std::vector<double> variances_of(const float* keys, int64_t n, int64_t dim) {
  std::vector<double> sums(static_cast<size_t>(dim)), squares(sums.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t d = 0; d < dim; ++d) {
      const double x = double{keys[i * dim + d]} - double{keys[d]};
      sums[static_cast<size_t>(d)] += x;
      squares[static_cast<size_t>(d)] += x * x;
    }
  for (size_t d = 0; d < sums.size(); ++d) squares[d] -= sums[d] * sums[d] / static_cast<double>(n);
  return squares;
}

}  // namespace sluice::impl::cpu::refine
