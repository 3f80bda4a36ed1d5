// How far dense attention may be from the reference.

#pragma once

#include <algorithm>
#include <cmath>

#include "parity/attend_case.h"
#include "parity/compare.h"

namespace sluice::impl::test {

inline double largest_norm(const std::vector<float>& rows, int64_t d) {
  double largest = 0;
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(d)) {
    double squares = 0;
    for (size_t i = begin; i < begin + static_cast<size_t>(d); ++i)
      squares += std::isnan(rows[i]) ? 0 : double{rows[i]} * rows[i];
    largest = std::max(largest, squares);
  }
  return std::sqrt(largest);
}

// What a cache that is not exact adds.
struct AttendErrors {
  double score = 0;  // relative to the largest |q| |k|, scaled
  double value = 0;  // of a value, relative
  double sum = 0;    // of an output
};

// out = sum p v with p the softmax of scores s. With S >= |s| for every score: a score errs by
// that of its dot product and 2 roundings, exp by 2 units in the last place and the rounding of its
// argument (up to 2 S), so each weight relatively by `weight`; numerator and denominator sum them,
// and each tile of keys (at least 16) rescales both. Where the weights are rounded to bf16 for the
// matrix instructions, each errs by another bf16 unit in the numerator. A cap makes no difference
// of two scores larger, and itself errs by at most 8 units of the cap (rows_test.cpp).
// All of it is relative to sum p |v|, which the reference computes from |values|.
inline std::vector<double> attend_bounds(Backend& reference, DType dtype, const AttendCase& c,
                                         const AttendInputs& in, const std::vector<float>& expected,
                                         const AttendErrors& more = {}) {
  AttendInputs magnitudes = in;
  magnitudes.values = absolute(in.values);
  const auto size = attend(reference, DType::kF32, c, magnitudes);
  const double s =
      largest_norm(in.queries, c.head_dim) * largest_norm(in.keys, c.head_dim) * double{c.scale()};
  const double weight =
      dot_error(dtype, c.head_dim, s) + more.score * s + (6 + 2 * s + 8 * double{c.cap}) * kF32Unit;
  const auto n = static_cast<double>(c.n_keys());
  const double sums = (2 * n + 4 * (n / 16 + 1) + 8) * sum_unit(dtype);
  const double narrow = dtype == DType::kBF16 ? kBF16Unit : 0;
  std::vector<double> bound;
  for (size_t i = 0; i < expected.size(); ++i)
    bound.push_back(
        stored_error(dtype, expected[i],
                     (2 * weight + sums + narrow + more.value) * double{size[i]} + more.sum));
  return bound;
}

}  // namespace sluice::impl::test
