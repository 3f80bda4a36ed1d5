#include "backend/cpu/selection/gram/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/primitives/score_rows.h"
#include "backend/cpu/selection/gram/simd.h"
#include "backend/exact.h"

namespace sluice::impl::cpu::selection {
namespace {

constexpr size_t kPruneAtLeast = 16;

}  // namespace

void Candidates::ask_nearest(bool magnitude, double least) {
  list.clear();
  absolute = magnitude;
  lower = -INFINITY;
  enter = least;
  stop = INFINITY;
  prune_at = kPruneAtLeast;
}

void Candidates::ask_threshold(double threshold, bool magnitude) {
  ask_nearest(magnitude, threshold);
  stop = threshold;
}

void Candidates::ask_nothing() {
  ask_nearest(false);
  enter = INFINITY;
}

void Candidates::ask_like(const Candidates& other) {
  list.clear();
  lower = other.lower;
  enter = other.enter;
  stop = other.stop;
  absolute = other.absolute;
  prune_at = kPruneAtLeast;
}

void Candidates::raise(double least) {
  lower = std::max(lower, least);
  enter = lower >= stop ? INFINITY : std::max(enter, lower);
}

void Candidates::add(const Candidate& candidate) {
  if (list.size() >= prune_at) {
    prune();
    prune_at = std::max(kPruneAtLeast, 2 * list.size());
  }
  list.push_back(candidate);
  raise(candidate.lower);
}

void Candidates::take_over(const Candidates& other) {
  raise(other.lower);
  for (const Candidate& candidate : other.list)
    if (candidate.upper >= enter) add(candidate);
}

void Candidates::prune() {
  std::erase_if(list, [&](const Candidate& c) { return c.upper < lower; });
}

Judge::Judge(const Rows& rows, int64_t d_model)
    : rows_(rows),
      d_model_(d_model),
      unit_(static_cast<size_t>(d_model)),
      scratch_(static_cast<size_t>((1 + kDotRows) * d_model)) {}

void Judge::take_row(int64_t row) {
  if (row == row_) return;
  row_ = row;
  elements_ = rows_.exact(row, scratch_.data());
  for (size_t k = 0; k < unit_.size(); ++k)
    unit_[k] = unit_element(elements_[k], rows_[row].inverse_norm);
}

void Judge::make_exact(int64_t row, bool absolute, std::span<Candidate> candidates) {
  take_row(row);
  std::array<Candidate*, kDotRows> group;
  size_t n = 0;
  const auto finish_group = [&] {
    std::array<const float*, kDotRows> columns;
    std::array<double, kDotRows> inverses, dots;
    // A short group repeats its last column.
    for (size_t i = 0; i < kDotRows; ++i) {
      const Candidate& candidate = *group[std::min(i, n - 1)];
      float* scratch = scratch_.data() + static_cast<int64_t>(i + 1) * d_model_;
      columns[i] = i < n ? candidate.columns->exact(candidate.column, scratch) : columns[n - 1];
      inverses[i] = (*candidate.columns)[candidate.column].inverse_norm;
    }
    n_products_ += static_cast<int64_t>(n);
    unit_dots(unit_.data(), columns.data(), inverses.data(), d_model_, dots.data());
    for (size_t i = 0; i < n; ++i) {
      group[i]->cosine = dots[i];
      group[i]->lower = group[i]->upper = absolute ? std::abs(dots[i]) : dots[i];
      group[i]->known = Candidate::Known::kExactly;
    }
    n = 0;
  };
  for (Candidate& candidate : candidates) {
    if (candidate.known == Candidate::Known::kExactly) continue;
    group[n++] = &candidate;
    if (n == kDotRows) finish_group();
  }
  if (n > 0) finish_group();
}

// Float32 sums of the rows as given, which help where the tile had rounded them.
void Judge::narrow_down(int64_t row, bool absolute, Candidate& candidate) {
  const Row& a = rows_[row];
  const Row& b = (*candidate.columns)[candidate.column];
  const bool rounded = a.rounding > 0 || b.rounding > 0;
  if (candidate.known != Candidate::Known::kByTile || !rounded) return;
  candidate.known = Candidate::Known::kByFloatDot;
  if (a.exponent != 0 || b.exponent != 0) return;
  take_row(row);
  ++n_products_;
  float sum = 0;
  primitives::dot_rows(elements_,
                       candidate.columns->exact(candidate.column, scratch_.data() + d_model_),
                       d_model_, 1, d_model_, &sum);
  double cosine = double{sum} * a.inverse_norm * b.inverse_norm;
  if (absolute) cosine = std::abs(cosine);
  const double error = float_dot_error(d_model_);
  candidate.lower = std::max(candidate.lower, cosine - error);
  candidate.upper = std::min(candidate.upper, cosine + error);
}

bool Judge::reaches(int64_t row, double threshold, Candidates& candidates) {
  if (candidates.lower >= threshold) return true;
  const auto unclear = [&](const Candidate& c) {
    return c.lower < threshold && c.upper >= threshold;
  };
  for (Candidate& candidate : candidates.list) {
    if (unclear(candidate)) narrow_down(row, candidates.absolute, candidate);
    if (unclear(candidate)) make_exact(row, candidates.absolute, {&candidate, 1});
    candidates.raise(candidate.lower);
    if (candidate.lower >= threshold) return true;
  }
  return false;
}

Candidate* Judge::nearest(int64_t row, Candidates& candidates) {
  auto& list = candidates.list;
  const auto settle = [&](const auto& step) {
    candidates.prune();
    if (list.size() <= 1) return;
    step();
    for (const Candidate& candidate : list) candidates.raise(candidate.lower);
    candidates.prune();
  };
  settle([&] {
    for (Candidate& candidate : list) narrow_down(row, candidates.absolute, candidate);
  });
  settle([&] { make_exact(row, candidates.absolute, list); });
  const auto first = std::min_element(
      list.begin(), list.end(),
      [](const Candidate& a, const Candidate& b) { return a.position() < b.position(); });
  return first == list.end() ? nullptr : &*first;
}

}  // namespace sluice::impl::cpu::selection
