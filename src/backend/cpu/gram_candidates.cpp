#include "backend/cpu/gram_candidates.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/score_rows.h"
#include "backend/exact.h"

namespace sluice::cpu {
namespace {

constexpr size_t kPruneAtLeast = 16;

}  // namespace

void GramCandidates::ask_nearest(bool magnitude) {
  list.clear();
  absolute = magnitude;
  lower = enter = -INFINITY;
  stop = INFINITY;
  prune_at = kPruneAtLeast;
}

void GramCandidates::ask_threshold(double threshold, bool magnitude) {
  ask_nearest(magnitude);
  enter = stop = threshold;
}

void GramCandidates::ask_nothing() {
  ask_nearest(false);
  enter = INFINITY;
}

void GramCandidates::ask_like(const GramCandidates& other) {
  list.clear();
  lower = other.lower;
  enter = other.enter;
  stop = other.stop;
  absolute = other.absolute;
  prune_at = kPruneAtLeast;
}

bool GramCandidates::asks() const { return enter < INFINITY; }

void GramCandidates::add(const GramCandidate& candidate) {
  if (list.size() >= prune_at) {
    prune();
    prune_at = std::max(kPruneAtLeast, 2 * list.size());
  }
  list.push_back(candidate);
  lower = std::max(lower, candidate.lower);
  enter = lower >= stop ? INFINITY : std::max(enter, lower);
}

void GramCandidates::take_over(const GramCandidates& other) {
  for (const GramCandidate& candidate : other.list)
    if (candidate.upper >= enter) add(candidate);
}

void GramCandidates::prune() {
  std::erase_if(list, [&](const GramCandidate& c) { return c.upper < lower; });
}

GramJudge::GramJudge(const GramRows& rows, int64_t d_model)
    : rows_(rows),
      d_model_(d_model),
      row_scratch_(static_cast<size_t>(d_model)),
      column_scratch_(static_cast<size_t>(d_model)) {}

double GramJudge::exact_cosine_of(int64_t row, const GramCandidate& candidate) {
  if (candidate.known == GramCandidate::Known::kExactly) return candidate.cosine;
  const auto unit = [&](const float* x, double inverse) {
    return UnitRow{ConstTensor(x, DType::kF32, {1, d_model_}), 0, inverse};
  };
  const float* column = candidate.columns->exact(candidate.column, column_scratch_.data());
  return exact_cosine(unit(rows_.exact(row, row_scratch_.data()), rows_[row].inverse_norm),
                      unit(column, (*candidate.columns)[candidate.column].inverse_norm));
}

// Float32 sums of the rows as given help where the tile had rounded them.
void GramJudge::narrow_down(int64_t row, bool absolute, GramCandidate& candidate) {
  using Known = GramCandidate::Known;
  const GramRow& a = rows_[row];
  const GramRow& b = (*candidate.columns)[candidate.column];
  const bool rounded = a.rounding > 0 || b.rounding > 0;
  if (candidate.known == Known::kByTile && rounded && a.exponent == 0 && b.exponent == 0) {
    float sum = 0;
    dot_rows(rows_.exact(row, row_scratch_.data()),
             candidate.columns->exact(candidate.column, column_scratch_.data()), d_model_, 1,
             d_model_, &sum);
    double cosine = double{sum} * a.inverse_norm * b.inverse_norm;
    if (absolute) cosine = std::abs(cosine);
    const double error = float_dot_error(d_model_);
    candidate.lower = std::max(candidate.lower, cosine - error);
    candidate.upper = std::min(candidate.upper, cosine + error);
    candidate.known = Known::kByFloatDot;
    return;
  }
  candidate.cosine = exact_cosine_of(row, candidate);
  candidate.known = Known::kExactly;
  candidate.lower = candidate.upper = absolute ? std::abs(candidate.cosine) : candidate.cosine;
}

bool GramJudge::reaches(int64_t row, double threshold, GramCandidates& candidates) {
  if (candidates.lower >= threshold) return true;
  for (GramCandidate& candidate : candidates.list) {
    while (candidate.lower < threshold && candidate.upper >= threshold)
      narrow_down(row, candidates.absolute, candidate);
    candidates.lower = std::max(candidates.lower, candidate.lower);
    if (candidate.lower >= threshold) return true;
  }
  return false;
}

const GramCandidate* GramJudge::nearest(int64_t row, GramCandidates& candidates) {
  auto& list = candidates.list;
  candidates.prune();
  while (list.size() > 1) {
    bool all_exact = true;
    for (GramCandidate& candidate : list) {
      if (candidate.known == GramCandidate::Known::kExactly) continue;
      all_exact = false;
      narrow_down(row, candidates.absolute, candidate);
      candidates.lower = std::max(candidates.lower, candidate.lower);
    }
    candidates.prune();
    if (all_exact) break;
  }
  const auto first = std::min_element(
      list.begin(), list.end(),
      [](const GramCandidate& a, const GramCandidate& b) { return a.position() < b.position(); });
  return first == list.end() ? nullptr : &*first;
}

}  // namespace sluice::cpu
