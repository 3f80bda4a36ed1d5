// Inherited bases capture what fresh ones do, to 1e-3 of all energy, or are fresh and say so.

#include "subspace/inherit.h"

#include <gtest/gtest.h>

#include <numeric>

#include "subspace/eigen.h"
#include "unit/subspace/random_matrices.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kD = 96, kRank = 12;

std::vector<double> spectrum(double decay, double floor) {
  std::vector<double> values;
  for (int64_t i = 0; i < kD; ++i)
    values.push_back(std::pow(decay, static_cast<double>(i)) + floor);
  return values;
}

// Rows `first` … of the eigenvectors.
std::vector<float> rows_from(const std::vector<double>& vectors, int64_t first) {
  return as_floats({vectors.begin() + first * kD, vectors.begin() + (first + kRank) * kD});
}

// Eigenvectors rotated by a small random amount.
std::vector<double> rotated(std::vector<double> vectors, double amount, uint32_t seed) {
  const std::vector<double> noise = random_rows(kD, kD, seed);
  for (size_t i = 0; i < vectors.size(); ++i) vectors[i] += amount * noise[i] / std::sqrt(kD);
  blas::orthonormalise(vectors, kD);
  return vectors;
}

void expect_as_good_as_fresh(const std::vector<double>& a, const Decomposition& made) {
  const Decomposition fresh = decompose(a, kD, kRank);
  const double total = fresh.captured(kD);
  EXPECT_GE(made.captured(kRank), fresh.captured(kRank) - 1e-3 * total);
  EXPECT_LE(made.captured(kRank), fresh.captured(kRank) + 1e-12 * total);
  // What the values say is what the vectors capture.
  const std::vector<double> products = blas::times_symmetric(made.vectors, a, kD);
  EXPECT_NEAR(blas::dot(made.vectors, products), made.captured(kRank), 1e-10 * total);
  EXPECT_LT(orthonormal_error(made.vectors, kD), 1e-12);
  EXPECT_TRUE(std::is_sorted(made.values.rbegin(), made.values.rend()));
}

TEST(Inherit, LowRankPlusNoiseIsInherited) {
  for (const double amount : {0.0, 0.05, 0.3, 1.0}) {
    const std::vector<double> before = random_orthonormal(kD, kD, 5);
    const std::vector<double> a = moment_of(spectrum(0.7, 1e-4), rotated(before, amount, 6));
    const Decomposition made = inherit(a, kD, rows_from(before, 0), {});
    EXPECT_TRUE(made.inherited) << amount;
    EXPECT_GE(made.iterations, 1);
    EXPECT_EQ(made.work, refine_work(kD, kRank, made.iterations, 1));
    expect_as_good_as_fresh(a, made);
  }
}

TEST(Inherit, AnyDecayIsInheritedOrMadeAfresh) {
  int n_inherited = 0, n_fresh = 0;
  for (const double decay : {0.3, 0.9, 0.98, 1.0})
    for (const double floor : {0.0, 1e-2, 1.0})
      for (uint32_t seed = 0; seed < 5; ++seed) {
        const std::vector<double> before = random_orthonormal(kD, kD, 10 + seed);
        const std::vector<double> a = moment_of(spectrum(decay, floor), rotated(before, 0.5, seed));
        const Decomposition made = inherit(a, kD, rows_from(before, 0), {.max_iterations = 4});
        ++(made.inherited ? n_inherited : n_fresh);
        expect_as_good_as_fresh(a, made);
      }
  EXPECT_GT(n_inherited, 0);
  EXPECT_GT(n_fresh, 0);
}

TEST(Inherit, AnUnrelatedBasisStillEndsInAGoodOne) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const std::vector<double> a =
        moment_of(spectrum(0.8, 1e-3), random_orthonormal(kD, kD, 100 + seed));
    expect_as_good_as_fresh(
        a, inherit(a, kD, as_floats(random_orthonormal(kRank, kD, 200 + seed)), {}));
  }
}

// Eigenvectors span what A maps to itself: their energy stands still from the start.
TEST(Inherit, TheWrongEigenvectorsAreFoundOut) {
  for (const double decay : {0.5, 0.97, 0.99}) {
    const std::vector<double> vectors = random_orthonormal(kD, kD, 8);
    const std::vector<double> a = moment_of(spectrum(decay, 1e-3), vectors);
    const Decomposition made = inherit(a, kD, rows_from(vectors, kRank), {.max_iterations = 3});
    EXPECT_FALSE(made.inherited) << decay;
    EXPECT_GT(made.iterations, 0);
    EXPECT_GT(made.work, eigen_work(kD, kRank));
    EXPECT_EQ(made.values.size(), static_cast<size_t>(kD));
    expect_as_good_as_fresh(a, made);
  }
}

// Halfway between eigenvectors of nearly the same value the energy hardly moves, and nothing
// outside has more of it; only that V is no eigenvector shows that there is more to be had.
TEST(Inherit, DirectionsBetweenEigenvectorsAreFoundOut) {
  constexpr double kNext = 0.987;
  std::vector<double> values(kD, 0.0);
  std::fill_n(values.begin(), kRank, 1.0);
  std::fill_n(values.begin() + kRank, kRank, kNext);
  const std::vector<double> vectors = random_orthonormal(kD, kD, 9);
  std::vector<double> before(kRank * kD);
  const double angle = std::atan(1 / kNext);  // one iteration later it is 45 degrees
  for (size_t i = 0; i < before.size(); ++i)
    before[i] = std::cos(angle) * vectors[i] + std::sin(angle) * vectors[i + kRank * kD];
  const std::vector<double> a = moment_of(values, vectors);
  expect_as_good_as_fresh(a, inherit(a, kD, as_floats(before), {}));
}

TEST(Inherit, AFullBasisIsItsOwnRefinement) {
  std::vector<double> values(8);
  std::iota(values.rbegin(), values.rend(), 1.0);
  const std::vector<double> a = moment_of(values, random_orthonormal(8, 8, 1));
  const Decomposition made = inherit(a, 8, as_floats(random_orthonormal(8, 8, 2)), {});
  EXPECT_TRUE(made.inherited);
  EXPECT_NEAR(made.captured(8), 36, 1e-12 * 36);
}

TEST(Inherit, IterationsAreTriedWhereTheyTakeHalfTheWork) {
  for (const int64_t d : {192, 768, 4096})
    for (const int64_t k : {d / 64, d / 16, d / 8, d / 4, d}) {
      const int n = affordable_iterations(d, k);
      if (n == 0)
        EXPECT_GE(refine_work(d, k, 2, 1), eigen_work(d, k) / 2);
      else
        EXPECT_LT(refine_work(d, k, n, 1), eigen_work(d, k) / 2);
    }
  EXPECT_EQ(affordable_iterations(4096, 1024), 0);
  EXPECT_GE(affordable_iterations(4096, 64), 5);
}

}  // namespace
}  // namespace sluice::impl::test
