// A running basis against the same rule as plain loops over a Jacobi eigensolver, and its limits.

#include "subspace/running.h"

#include <gtest/gtest.h>

#include <numeric>

#include "subspace/eigen.h"
#include "unit/subspace/random_matrices.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kWidth = 20, kKept = 6;
using Rows = std::vector<std::vector<double>>;

// Eigenvectors of a symmetric matrix as rows, largest eigenvalue first: cyclic Jacobi rotations.
struct PlainEigen {
  std::vector<double> values;
  Rows vectors;
};
PlainEigen jacobi(Rows a) {
  const size_t n = a.size();
  Rows v(n, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) v[i][i] = 1;
  for (int sweep = 0; sweep < 20; ++sweep)
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        if (std::abs(a[p][q]) < 1e-300) continue;
        const double theta = 0.5 * std::atan2(2 * a[p][q], a[q][q] - a[p][p]);
        const double c = std::cos(theta), s = std::sin(theta);
        for (size_t i = 0; i < n; ++i) {
          const double x = a[i][p], y = a[i][q];
          a[i][p] = c * x - s * y;
          a[i][q] = s * x + c * y;
        }
        for (size_t i = 0; i < n; ++i) {
          const double x = a[p][i], y = a[q][i];
          a[p][i] = c * x - s * y;
          a[q][i] = s * x + c * y;
          const double vx = v[p][i], vy = v[q][i];
          v[p][i] = c * vx - s * vy;
          v[q][i] = s * vx + c * vy;
        }
      }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return a[i][i] > a[j][j]; });
  PlainEigen out;
  for (const size_t i : order) {
    out.values.push_back(a[i][i]);
    out.vectors.push_back(v[i]);
  }
  return out;
}

Rows as_rows(std::span<const double> values) {
  Rows out;
  for (size_t i = 0; i < values.size(); i += kWidth)
    out.emplace_back(values.begin() + static_cast<std::ptrdiff_t>(i),
                     values.begin() + static_cast<std::ptrdiff_t>(i + kWidth));
  return out;
}

// xᵀ A y
double form(const std::vector<double>& x, const Rows& a, const std::vector<double>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < y.size(); ++j) sum += x[i] * a[i][j] * y[j];
  return sum;
}

// Energy that the best kKept directions within the rows' span capture.
double best_within(const Rows& rows, const Rows& a) {
  Rows inner(rows.size(), std::vector<double>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < rows.size(); ++j) inner[i][j] = form(rows[i], a, rows[j]);
  const PlainEigen eigen = jacobi(inner);
  return std::accumulate(eigen.values.begin(), eigen.values.begin() + kKept, 0.0);
}

struct PlainResult {
  int64_t updates;
  double energy;
};
PlainResult plain_running(const Rows& a, const Rows& before, double threshold) {
  double total = 0;
  for (size_t i = 0; i < kWidth; ++i) total += a[i][i];
  double captured = 0;
  for (const auto& v : before) captured += form(v, a, v);
  if (1 - captured / total <= threshold) return {0, captured / total};
  // What is outside: both sides of A less their parts along the basis.
  Rows rest(kWidth, std::vector<double>(kWidth));
  Rows outside(kWidth, std::vector<double>(kWidth));
  for (size_t i = 0; i < kWidth; ++i) {
    outside[i][i] = 1;
    for (const auto& v : before)
      for (size_t j = 0; j < kWidth; ++j) outside[i][j] -= v[i] * v[j];
  }
  for (size_t i = 0; i < kWidth; ++i)
    for (size_t j = 0; j < kWidth; ++j) rest[i][j] = form(outside[i], a, outside[j]);
  const Rows leading = jacobi(rest).vectors;
  Rows rows = before;
  for (int64_t joined = 1; joined < kKept; ++joined) {
    rows.push_back(leading[static_cast<size_t>(joined - 1)]);
    const double energy = best_within(rows, a) / total;
    if (1 - energy <= threshold) return {joined, energy};
  }
  const PlainEigen fresh = jacobi(a);
  return {kKept, std::accumulate(fresh.values.begin(), fresh.values.begin() + kKept, 0.0) / total};
}

// A layer's moment, and a basis that is `amount` off its leading directions.
struct Layer {
  std::vector<double> a;       // (d, d), both triangles
  std::vector<double> before;  // (k, d)
};
Layer random_layer(double decay, double amount, uint32_t seed) {
  const std::vector<double> vectors = random_orthonormal(kWidth, kWidth, seed);
  std::vector<double> values;
  for (int64_t i = 0; i < kWidth; ++i) values.push_back(std::pow(decay, static_cast<double>(i)));
  Layer out{moment_of(values, vectors), {}};
  for (size_t i = 0; i < kWidth; ++i)
    for (size_t j = 0; j < i; ++j) out.a[i * kWidth + j] = out.a[j * kWidth + i];
  const std::vector<double> noise = random_rows(kKept, kWidth, seed + 1000);
  for (size_t i = 0; i < noise.size(); ++i)
    out.before.push_back(vectors[i] + amount * noise[i] / std::sqrt(double{kWidth}));
  blas::orthonormalise(out.before, kWidth);
  return out;
}

RunningBasis run(const Layer& layer, double threshold) {
  return run_basis(
      {.a = layer.a, .d = kWidth, .k = kKept, .before = layer.before, .threshold = threshold});
}

TEST(Running, EqualsThePlainLoops) {
  std::vector<int64_t> seen(kKept + 1);
  for (const double decay : {0.6, 0.85})
    for (const double amount : {0.2, 1.0, 3.0})
      for (const double threshold : {0.02, 0.1, 0.3, 0.45, 0.6})
        for (uint32_t seed = 0; seed < 3; ++seed) {
          const Layer layer = random_layer(decay, amount, seed);
          const RunningBasis made = run(layer, threshold);
          const PlainResult plain =
              plain_running(as_rows(layer.a), as_rows(layer.before), threshold);
          EXPECT_EQ(made.updates, plain.updates) << decay << " " << amount << " " << threshold;
          // The same sums in another order; Jacobi ends at about 1e-13 of the largest value.
          EXPECT_NEAR(made.energy, plain.energy, 1e-10);
          EXPECT_LT(orthonormal_error(made.vectors, kWidth), 1e-12);
          // What it says is what its directions capture.
          const double total = std::accumulate(layer.a.begin(), layer.a.end(), 0.0,
                                               [&, i = size_t{0}](double sum, double x) mutable {
                                                 return sum + (i++ % (kWidth + 1) == 0 ? x : 0);
                                               });
          EXPECT_NEAR(blas::dot(made.vectors, blas::times_symmetric(made.vectors, layer.a, kWidth)),
                      made.energy * total, 1e-12 * total);
          ++seen[static_cast<size_t>(made.updates)];
        }
  // The cases are of all kinds: inherited, updated in part, afresh.
  EXPECT_GT(seen.front(), 0);
  EXPECT_GT(seen.back(), 0);
  EXPECT_GT(std::accumulate(seen.begin() + 1, seen.end() - 1, int64_t{0}), 0);
}

TEST(Running, ThresholdZeroIsAFreshBasis) {
  const Layer layer = random_layer(0.8, 0.3, 7);
  const RunningBasis made = run(layer, 0);
  const Eigen fresh = top_eigen(layer.a, kWidth, kKept);
  EXPECT_EQ(made.updates, kKept);
  EXPECT_EQ(made.vectors, fresh.vectors);
}

TEST(Running, ThresholdOneNeverUpdates) {
  // Orthogonal to all that the layer has: the residual is everything.
  Layer layer = random_layer(0.8, 0, 8);
  const std::vector<double> vectors = random_orthonormal(kWidth, kWidth, 8);
  const std::vector<double> last(vectors.end() - kKept * kWidth, vectors.end());
  layer.before = last;
  const RunningBasis made = run(layer, 1);
  EXPECT_EQ(made.updates, 0);
  EXPECT_EQ(made.vectors, last);
  EXPECT_GT(made.residual, 0.9);
}

TEST(Running, WithoutABasisBeforeItIsAFreshOne) {
  const Layer layer = random_layer(0.8, 0, 9);
  const RunningBasis made =
      run_basis({.a = layer.a, .d = kWidth, .k = kKept, .before = {}, .threshold = 1});
  EXPECT_EQ(made.updates, kKept);
  EXPECT_EQ(made.vectors, top_eigen(layer.a, kWidth, kKept).vectors);
}

TEST(Running, ABasisOfAllDirectionsLeavesNothingOut) {
  const Layer layer = random_layer(0.8, 0, 10);
  const std::vector<double> all = random_orthonormal(kWidth, kWidth, 11);
  const RunningBasis made =
      run_basis({.a = layer.a, .d = kWidth, .k = kWidth, .before = all, .threshold = 1e-9});
  EXPECT_EQ(made.updates, 0);
  EXPECT_NEAR(made.energy, 1, 1e-12);  // round-off of d² sums
}

}  // namespace
}  // namespace sluice::impl::test
