// Which columns may be the nearest to a row: cosines known as intervals, made exact only where
// intervals overlap each other or the threshold.

#pragma once

#include <limits>

#include "backend/cpu/selection/gram/columns.h"

namespace sluice::impl::cpu::selection {

struct Candidate {
  enum class Known : uint8_t { kByTile, kByFloatDot, kExactly };

  const Columns* columns;
  int64_t column;
  double lower, upper;  // of the cosine, or of its magnitude in absolute comparisons
  Known known = Known::kByTile;
  double cosine = 0;  // signed, once known exactly

  int64_t position() const { return (*columns)[column].position; }
};

// The candidates of one row in one kind of comparison.
struct Candidates {
  std::vector<Candidate> list;
  double lower = 0;  // the largest lower end so far
  double enter = 0;  // a candidate must reach this to matter
  double stop = 0;   // once a lower end reaches this, no other candidate matters
  bool absolute = false;
  size_t prune_at = 0;

  // For comparisons that ask for the nearest column, if it is at least that near; for those that
  // ask only whether any reaches the threshold; and for none.
  void ask_nearest(bool magnitude, double least = -std::numeric_limits<double>::infinity());
  void ask_threshold(double threshold, bool magnitude);
  void ask_nothing();
  // An empty one that asks the same and knows what is already reached.
  void ask_like(const Candidates& other);

  bool asks() const { return enter < std::numeric_limits<double>::infinity(); }
  // Some column, added by now or later, has a cosine of at least this.
  void raise(double least);
  void add(const Candidate& candidate);
  void take_over(const Candidates& other);
  // Drops what cannot be the nearest any more.
  void prune();
};

// Settles comparisons of the rows of one block.
class Judge {
 public:
  Judge(const Rows& rows, int64_t d_model);

  // Whether a column reaches the threshold.
  bool reaches(int64_t row, double threshold, Candidates& candidates);
  // The column of largest cosine, ties to the first position; nullptr where there is none.
  Candidate* nearest(int64_t row, Candidates& candidates);
  // Makes candidate.cosine known.
  void make_exact(int64_t row, bool absolute, std::span<Candidate> candidates);

  int64_t n_products() const { return n_products_; }  // pairs multiplied again

 private:
  void take_row(int64_t row);
  void narrow_down(int64_t row, bool absolute, Candidate& candidate);

  const Rows& rows_;
  int64_t d_model_;
  int64_t n_products_ = 0;
  int64_t row_ = -1;                 // whose elements are at hand
  const float* elements_ = nullptr;  // (d_model)
  std::vector<float> unit_;          // (d_model) of the unit row
  std::vector<float> scratch_;       // (1 + kDotRows, d_model)
};

}  // namespace sluice::impl::cpu::selection
