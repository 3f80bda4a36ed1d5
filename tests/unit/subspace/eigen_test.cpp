#include "subspace/eigen.h"

#include <gtest/gtest.h>

#include "unit/subspace/random_matrices.h"

namespace sluice::impl::test {
namespace {

struct Case {
  int64_t d, k;
};

class TopEigen : public testing::TestWithParam<Case> {};

// Eigenvalues to d times the rounding error of the largest, vectors to the same over the gap.
TEST_P(TopEigen, FindsAPlantedSpectrumAndItsLeadingVectors) {
  const auto [d, k] = GetParam();
  std::vector<double> values;
  for (int64_t i = 0; i < d; ++i) values.push_back(static_cast<double>((d - i) * (d - i)));
  const std::vector<double> vectors = random_orthonormal(d, d, 3);
  const Eigen eigen = top_eigen(moment_of(values, vectors), d, k);
  ASSERT_EQ(eigen.values.size(), static_cast<size_t>(d));
  ASSERT_EQ(eigen.vectors.size(), static_cast<size_t>(d * k));
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(eigen.values[i], values[i], 1e-14 * static_cast<double>(d) * values[0]);
  EXPECT_LT(orthonormal_error(eigen.vectors, d), 1e-12);
  const auto width = static_cast<size_t>(d);
  for (size_t i = 0; i < static_cast<size_t>(k); ++i)
    EXPECT_NEAR(std::abs(blas::dot(std::span(eigen.vectors).subspan(i * width, width),
                                   std::span(vectors).subspan(i * width, width))),
                1, 1e-9)
        << "vector " << i;
}

INSTANTIATE_TEST_SUITE_P(Sizes, TopEigen,
                         testing::Values(Case{1, 1}, Case{2, 1}, Case{7, 7}, Case{40, 3},
                                         Case{65, 64}, Case{150, 0}));

TEST(TopEigen, OfARankDeficientMomentIsOrthonormalAndNeverNegative) {
  constexpr int64_t kD = 50;
  std::vector<double> a(kD * kD);
  blas::add_products(random_rows(6, kD, 1), kD, a);
  const Eigen eigen = top_eigen(a, kD, 20);
  EXPECT_LT(orthonormal_error(eigen.vectors, kD), 1e-12);
  for (size_t i = 0; i < eigen.values.size(); ++i) {
    EXPECT_GE(eigen.values[i], 0);
    EXPECT_LE(eigen.values[i], (i < 6 ? 1 : 1e-12) * eigen.values[0]);
  }
}

TEST(TopEigen, OfZerosAreZeros) {
  const Eigen eigen = top_eigen(std::vector<double>(16), 4, 2);
  EXPECT_EQ(eigen.values, std::vector<double>(4, 0.0));
  EXPECT_LT(orthonormal_error(eigen.vectors, 4), 1e-12);
}

}  // namespace
}  // namespace sluice::impl::test
