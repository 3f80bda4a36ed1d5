// The SIMD kernels on rows, where the operations of backend.h do not reach every case.

#include "backend/cpu/primitives/rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/primitives/score_rows.h"
#include "parity/backends.h"
#include "parity/compare.h"

namespace sluice::impl::cpu::primitives {
namespace {

using test::kF32Unit;
using test::random_values;

// narrow() of numbers, which has the bits of to_bfloat16().
std::vector<BFloat16> narrowed(const std::vector<float>& from) {
  std::vector<BFloat16> to(from.size());
  narrow(from.data(), std::ssize(from), to.data());
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(to[i].bits, to_bfloat16(from[i]).bits) << std::hexfloat << from[i];
    if (testing::Test::HasFailure()) break;
  }
  return to;
}

TEST(Narrow, HasTheBitsOfToBFloat16ForEveryPattern) {
  std::vector<float> from;
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      from.push_back(std::bit_cast<float>((upper << 16) | lower));
  from.push_back(1.0f);  // a length that is no multiple of a vector
  const std::vector<BFloat16> to = narrowed(from);
  // Numbers of all kinds side by side: subnormal ones beside NaN and infinities.
  std::vector<float> mixed(from.size());
  for (size_t i = 0; i < from.size(); ++i) mixed[i] = from[i * 7919 % from.size()];
  narrowed(mixed);
  std::vector<float> back(to.size());
  widen(to.data(), static_cast<int64_t>(to.size()), back.data());
  for (size_t i = 0; i < to.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), uint32_t{to[i].bits} << 16);
}

TEST(Narrow, WritesAsManyNumbersAsItIsGiven) {
  const std::vector<float> from = random_values(70, 1);
  for (int64_t n = 0; n <= 70; ++n) {
    std::vector<BFloat16> to(72, BFloat16{0x1234});
    narrow(from.data(), n, to.data());
    for (size_t i = 0; i < to.size(); ++i)
      ASSERT_EQ(to[i].bits,
                i < static_cast<size_t>(n) ? to_bfloat16(from[i]).bits : uint16_t{0x1234})
          << i << " of " << n;
  }
}

TEST(LogSumExp, AgreesWithFloat64) {
  for (const int64_t n : {1, 2, 3, 4, 5, 17, 64, 1001, 50257})
    for (const float size : {1.0f, 30.0f, 5000.0f}) {
      const auto x = random_values(n, 1, DType::kF32, size);
      const float largest = *std::max_element(x.begin(), x.end());
      double total = 0;
      for (const float v : x) total += std::exp(double{v} - largest);
      const double expected = largest + std::log(total);
      // exp errs by a unit of its argument (up to 2 size, but there it weighs nothing: t exp(-t)
      // is below 0.37) and 2 of its result; the sums are short. Then one rounding of the result.
      EXPECT_NEAR(log_sum_exp(x.data(), n), expected,
                  300 * kF32Unit + 3 * kF32Unit * std::abs(expected))
          << n << " numbers of size " << size;
    }
}

TEST(LogSumExp, IgnoresMinusInfinity) {
  for (const int64_t n : {2, 5, 9}) {
    std::vector<float> x(static_cast<size_t>(n), -INFINITY);
    x[1] = 3.5f;
    EXPECT_EQ(log_sum_exp(x.data(), n), 3.5f);
  }
}

TEST(SoftmaxStep, StepsOverPartsGiveTheSoftmaxOfTheWhole) {
  for (const int64_t n : {1, 3, 16, 37, 300})
    for (const int64_t part : {1, 5, 128}) {
      const float factor = 0.7f;
      const auto x = random_values(n, 2, DType::kF32, 20.0f);
      std::vector<double> weights;
      SoftmaxState state{-INFINITY, 0.0f};
      for (int64_t begin = 0; begin < n; begin += part) {
        std::vector<float> piece(x.begin() + begin, x.begin() + std::min(n, begin + part));
        const float correction =
            softmax_step(factor, static_cast<int64_t>(piece.size()), piece.data(), state);
        for (double& w : weights) w *= correction;
        weights.insert(weights.end(), piece.begin(), piece.end());
      }
      double largest = -INFINITY, total = 0;
      for (const float v : x) largest = std::max(largest, double{factor} * v);
      for (const float v : x) total += std::exp(double{factor} * v - largest);
      for (size_t i = 0; i < x.size(); ++i) {
        // Relative: the argument of exp is up to 28 and rounded about 3 times, as is each of up to
        // 300 corrections; the sum has n terms.
        const double expected = std::exp(double{factor} * x[i] - largest) / total;
        EXPECT_NEAR(weights[i] / state.total, expected, 700 * kF32Unit * expected + 1e-12);
      }
    }
}

TEST(SoftmaxStep, ACountOfEqualScoresWeighsAsThatManyScores) {
  for (const int64_t n : {1, 3, 16, 37}) {
    const auto x = random_values(n, 3, DType::kF32, 5.0f);
    std::vector<float> counts, repeated;
    for (int64_t i = 0; i < n; ++i) {
      counts.push_back(static_cast<float>(1 + i % 4));
      repeated.insert(repeated.end(), static_cast<size_t>(1 + i % 4), x[static_cast<size_t>(i)]);
    }
    SoftmaxState state{-INFINITY, 0.0f}, expected = state;
    auto weights = x;
    softmax_step(0.7f, n, weights.data(), state, counts.data());
    softmax_step(0.7f, static_cast<int64_t>(repeated.size()), repeated.data(), expected);
    EXPECT_EQ(state.maximum, expected.maximum);
    // Sums of up to 100 terms in another order, and two computations of the same exponential, each
    // within 2 units in the last place and a rounded argument of up to 7.
    EXPECT_NEAR(state.total, expected.total, 150 * kF32Unit * expected.total);
    size_t at = 0;
    for (size_t i = 0; i < weights.size(); at += static_cast<size_t>(counts[i]), ++i)
      EXPECT_NEAR(weights[i], counts[i] * repeated[at], 32 * kF32Unit * weights[i]);
  }
}

TEST(SoftmaxStep, ARowOfMinusInfinityLeavesEverythingAsItWas) {
  for (const float maximum : {-INFINITY, 2.0f}) {
    SoftmaxState state{maximum, 3.0f};
    std::vector<float> x(9, -INFINITY);
    EXPECT_EQ(softmax_step(0.5f, 9, x.data(), state), 1.0f);
    EXPECT_EQ(state.maximum, maximum);
    EXPECT_EQ(state.total, 3.0f);
    for (const float v : x) EXPECT_EQ(v, 0.0f);
  }
}

template <typename T>
class DotAndMix : public testing::Test {};
using StoredTypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(DotAndMix, StoredTypes);

TYPED_TEST(DotAndMix, AgreeWithFloat64) {
  for (const int64_t d : {1, 2, 7, 8, 16, 17, 64, 80, 100, 256})
    for (const int64_t n : {1, 2, 3, 9}) {
      const int64_t stride = d + 3;
      const auto q = random_values(d, 1), weights = random_values(n, 2), old = random_values(d, 3);
      const auto numbers = random_values(n * stride, 4);
      std::vector<TypeParam> rows;
      for (const float x : numbers) rows.push_back(from_float<TypeParam>(x));
      const auto at = [&](int64_t j, int64_t i) {
        return double{to_float(rows[static_cast<size_t>(j * stride + i)])};
      };
      std::vector<float> dots(static_cast<size_t>(n));
      dot_rows(q.data(), rows.data(), stride, n, d, dots.data());
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < d; ++i) {
          sum += q[static_cast<size_t>(i)] * at(j, i);
          size += std::abs(q[static_cast<size_t>(i)] * at(j, i));
        }
        EXPECT_NEAR(dots[static_cast<size_t>(j)], sum, test::dot_error(DType::kF32, d, size));
      }
      auto mixed = old;
      mix_rows(weights.data(), rows.data(), stride, n, d, mixed.data());
      for (int64_t i = 0; i < d; ++i) {
        double sum = old[static_cast<size_t>(i)], size = std::abs(sum);
        for (int64_t j = 0; j < n; ++j) {
          sum += weights[static_cast<size_t>(j)] * at(j, i);
          size += std::abs(weights[static_cast<size_t>(j)] * at(j, i));
        }
        EXPECT_NEAR(mixed[static_cast<size_t>(i)], sum, test::dot_error(DType::kF32, n, size));
      }
    }
}

TEST(SimdName, IsNotEmpty) { EXPECT_STRNE(simd_name(), ""); }

}  // namespace
}  // namespace sluice::impl::cpu::primitives
