// Queries of one key head over rows of bf16 (primitives/group_rows.h), by the bf16 instructions of
// this CPU.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/primitives/group_rows.h"

namespace sluice::impl::cpu::primitives {
namespace {

// Of up to 512 products of bf16 numbers, summed in f32 in any order.
constexpr double kRound = 512 * 0x1p-24;
constexpr int64_t kWidths[] = {16, 32, 48, 64, 80, 128};
constexpr int64_t kLengths[] = {1, 2, 3, 5, 15, 16, 17, 33, 100, 128};

struct Values {
  Values(int64_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) {
      bf16.push_back(from_float<BFloat16>(normal(random)));
      exact.push_back(to_float(bf16.back()));
    }
  }
  std::vector<BFloat16> bf16;
  std::vector<double> exact;
};

// sum of a[i] b[i stride], and of the magnitudes.
struct Sum {
  Sum(const double* a, const double* b, int64_t n, int64_t a_stride, int64_t b_stride) {
    for (int64_t i = 0; i < n; ++i) {
      value += a[i * a_stride] * b[i * b_stride];
      size += std::abs(a[i * a_stride] * b[i * b_stride]);
    }
  }
  double value = 0, size = 0;
};

class NativeKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (native_group() == nullptr) GTEST_SKIP() << "this CPU has no bf16 instructions";
  }
  // The first rows are the next ones too, which changes nothing.
  static GroupRows<BFloat16> group(const Values& rows, int64_t n, int64_t d, int64_t n_queries,
                                   std::vector<float>& scores) {
    return {.rows = rows.bf16.data(),
            .n = n,
            .d = d,
            .n_queries = n_queries,
            .scores = scores.data(),
            .score_stride = stride(n),
            .next = rows.bf16.data(),
            .n_next = n / 2 + 1};
  }
  static int64_t stride(int64_t n) {
    return (n + NativeGroup::kRows - 1) / NativeGroup::kRows * NativeGroup::kRows;
  }
};

TEST_F(NativeKernels, ScoresAreThoseOfFloat64) {
  for (const int64_t d : kWidths)
    for (const int64_t n : kLengths)
      for (int64_t n_queries = 1; n_queries <= 6; ++n_queries) {
        SCOPED_TRACE(testing::Message() << n << " rows of " << d << ", " << n_queries);
        const Values rows(n * d, 1), queries(n_queries * d, 2);
        std::vector<BFloat16> packed(
            static_cast<size_t>(NativeGroup::packed_elements(n_queries, d)));
        native_group()->pack(queries.bf16.data(), n_queries, d, packed.data());
        std::vector<float> scores(static_cast<size_t>(n_queries * stride(n)), NAN);
        native_group()->dot(group(rows, n, d, n_queries, scores), packed.data());
        for (int64_t q = 0; q < n_queries; ++q)
          for (int64_t j = 0; j < n; ++j) {
            const Sum sum(&queries.exact[static_cast<size_t>(q * d)],
                          &rows.exact[static_cast<size_t>(j * d)], d, 1, 1);
            ASSERT_NEAR(scores[static_cast<size_t>(q * stride(n) + j)], sum.value,
                        kRound * sum.size);
          }
      }
}

TEST_F(NativeKernels, WeightedSumsAreThoseOfFloat64) {
  for (const int64_t d : kWidths)
    for (const int64_t n : kLengths)
      for (int64_t n_queries = 1; n_queries <= 6; ++n_queries) {
        SCOPED_TRACE(testing::Message() << n << " rows of " << d << ", " << n_queries);
        const Values rows(n * d, 3);
        Values weights(n_queries * stride(n), 4);
        for (int64_t q = 0; q < n_queries; ++q)
          for (int64_t j = n; j < stride(n); ++j)
            weights.bf16[static_cast<size_t>(q * stride(n) + j)] = BFloat16{};
        std::vector<float> unused, sums(static_cast<size_t>(n_queries * d), 0.5f);
        native_group()->mix(group(rows, n, d, n_queries, unused), weights.bf16.data(), sums.data());
        for (int64_t q = 0; q < n_queries; ++q)
          for (int64_t k = 0; k < d; ++k) {
            const Sum sum(&weights.exact[static_cast<size_t>(q * stride(n))],
                          &rows.exact[static_cast<size_t>(k)], n, 1, d);
            ASSERT_NEAR(sums[static_cast<size_t>(q * d + k)], 0.5 + sum.value,
                        kRound * (0.5 + sum.size));
          }
      }
}

}  // namespace
}  // namespace sluice::impl::cpu::primitives
