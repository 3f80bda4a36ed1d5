#include "subspace/angles.h"

#include <gtest/gtest.h>

#include "unit/subspace/random_matrices.h"

namespace sluice::impl::test {
namespace {

TEST(Coherence, IsOneForOneSubspaceInTwoBases) {
  const std::vector<double> a = random_orthonormal(5, 20, 1);
  const std::vector<double> b = blas::times(random_orthonormal(5, 5, 2), a, 5);
  const Coherence c = coherence(as_floats(a), as_floats(b), 20);
  EXPECT_NEAR(c.mean_squared, 1, 1e-6);  // rows are float32
  EXPECT_NEAR(c.smallest, 1, 1e-6);
}

TEST(Coherence, OfKnownAnglesIsTheirs) {
  // e0, e1 against e0 rotated by 60 degrees towards e2, and e1.
  const std::vector<float> a = {1, 0, 0, 0, 0, 1, 0, 0};
  const std::vector<float> b = {0.5f, 0, std::sqrt(0.75f), 0, 0, 1, 0, 0};
  const Coherence c = coherence(a, b, 4);
  EXPECT_NEAR(c.mean_squared, (0.25 + 1) / 2, 1e-6);
  EXPECT_NEAR(c.smallest, 0.5, 1e-6);
}

TEST(Coherence, OfOrthogonalSubspacesIsZero) {
  const std::vector<float> a = {1, 0, 0, 0}, b = {0, 0, 1, 0};
  EXPECT_EQ(coherence(a, b, 4).mean_squared, 0);
  EXPECT_EQ(coherence(a, b, 4).smallest, 0);
}

// The mean of cos² over random subspaces is k/d; its spread is about sqrt(2)/d.
TEST(Coherence, OfRandomSubspacesIsTheirShareOfTheSpace) {
  const Coherence c = coherence(as_floats(random_orthonormal(32, 128, 1)),
                                as_floats(random_orthonormal(32, 128, 2)), 128);
  EXPECT_NEAR(c.mean_squared, 0.25, 5 * std::sqrt(2.0) / 128);
}

}  // namespace
}  // namespace sluice::impl::test
