// Comparison with a bound for every element, and the constants the bounds are made of. A failure
// prints the worst element: the one furthest beyond its bound.

#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "backend/backend.h"

namespace sluice::impl::test {

// Half a unit in the last place of f32, relative: what one rounded operation may err by.
constexpr double kF32Unit = 0x1p-24;
// The same of bf16, which has 8 significant bits.
constexpr double kBF16Unit = 0x1p-8;

// Relative error of one addition inside a product. Products of bf16 numbers are exact in f32, but
// Arm's BF16 instructions round their sums to odd, which errs by up to a whole unit.
inline double sum_unit(DType dtype) { return dtype == DType::kBF16 ? 2 * kF32Unit : kF32Unit; }

// Error of a dot product of k terms whose absolute values sum to `absolute_sum`, in any order:
// every term meets at most k additions, and a few more with bias, blocks and the final rounding.
inline double dot_error(DType dtype, int64_t k, double absolute_sum) {
  return static_cast<double>(k + 4) * sum_unit(dtype) * absolute_sum;
}

// `error` before the result is rounded to dtype -> error after, against a reference that is itself
// rounded to f32.
inline double stored_error(DType dtype, double value, double error) {
  const double unit = dtype == DType::kBF16 ? kBF16Unit : kF32Unit;
  return error + unit * (std::abs(value) + error) + kF32Unit * std::abs(value);
}

// The steepest slope of any activation (gelu near 1.4), so an error grows by no more than this.
constexpr double kActivationSlope = 1.13;
// Error of evaluating an activation at x itself, absolute. sigmoid(t) errs relatively by that of t
// (4 roundings, times t (1 - sigmoid) <= 0.28), of exp (2 units in the last place), of the sum and
// of the quotient: 8 halves of a unit together. erf by Abramowitz and Stegun errs by 1.5e-7, half
// of which counts.
inline double activation_error(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
      return 0;
    case Activation::kGeluErf:
      return std::abs(x) * (0.75e-7 + 8 * kF32Unit);
    case Activation::kGeluTanh:
    case Activation::kSilu:
      return std::abs(x) * 8 * kF32Unit;
  }
  return 0;
}

using Bound = std::function<double(size_t index)>;
inline Bound bound_of(std::vector<double> bounds) {
  return [bounds = std::move(bounds)](size_t i) { return bounds[i]; };
}
inline Bound bound_of(double bound) {
  return [bound](size_t) { return bound; };
}

inline testing::AssertionResult close(const std::vector<float>& got,
                                      const std::vector<float>& expected, const Bound& bound) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " elements, expected " << expected.size();
  size_t worst = 0, n_wrong = 0;
  double worst_ratio = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(double{got[i]} - expected[i]);
    double ratio = error == 0 ? 0 : error / bound(i);
    if (!std::isfinite(got[i]) || std::isnan(ratio)) ratio = INFINITY;
    if (ratio > 1) ++n_wrong;
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  // For whoever tunes a bound: how much of it is used.
  if (std::getenv("SLUICE_SHOW_CLOSENESS") != nullptr) {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "closeness %s.%s %.4f of the bound\n", info->test_suite_name(),
                 info->name(), worst_ratio);
  }
  if (n_wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << n_wrong << " of " << got.size() << " elements beyond their bounds; worst: element "
         << worst << " is " << got[worst] << ", expected " << expected[worst] << " +- "
         << bound(worst) << " (" << worst_ratio << " times the bound)";
}

inline testing::AssertionResult same_bits(const std::vector<float>& got,
                                          const std::vector<float>& expected) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " elements, expected " << expected.size();
  for (size_t i = 0; i < got.size(); ++i)
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) != 0)
      return testing::AssertionFailure() << "first different element: " << i << " is " << got[i]
                                         << ", expected " << expected[i] << " to the last bit";
  return testing::AssertionSuccess();
}

}  // namespace sluice::impl::test

// bound: one number, or one per element.
#define EXPECT_CLOSE(got, expected, bound) \
  EXPECT_TRUE(::sluice::impl::test::close(got, expected, ::sluice::impl::test::bound_of(bound)))
#define EXPECT_SAME_BITS(got, expected) EXPECT_TRUE(::sluice::impl::test::same_bits(got, expected))
