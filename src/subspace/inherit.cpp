#include "subspace/inherit.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "core/error.h"
#include "core/seconds.h"
#include "subspace/blas.h"
#include "subspace/eigen.h"

namespace sluice::impl {
namespace {

// Rows that may become eigenvectors, and their products with A.
struct Iterate {
  std::vector<double> rows, products;  // (k, d)
  double energy() const { return blas::dot(rows, products); }
};

Iterate make_iterate(std::vector<double> rows, const std::vector<double>& a, int64_t d) {
  std::vector<double> products = blas::times_symmetric(rows, a, d);
  return {std::move(rows), std::move(products)};
}

// Rayleigh-Ritz: the eigenvectors of A as far as the rows' span shows them, and how far each is
// from being one, ‖A v - theta v‖.
struct Ritz {
  Eigen eigen;
  std::vector<double> residuals;  // (k)
};
Ritz ritz(const Iterate& v, int64_t d, int64_t k) {
  Eigen inner = top_eigen(blas::times_transposed(v.rows, v.products, d), k, k);
  const std::vector<double> products = blas::times(inner.vectors, v.products, k);
  inner.vectors = blas::times(inner.vectors, v.rows, k);
  std::vector<double> residuals;
  for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
    double sum = 0;
    for (size_t j = i * static_cast<size_t>(d); j < (i + 1) * static_cast<size_t>(d); ++j) {
      const double rest = products[j] - inner.values[i] * inner.vectors[j];
      sum += rest * rest;
    }
    residuals.push_back(std::sqrt(sum));
  }
  return {std::move(inner), std::move(residuals)};
}

// x less its part in the span of orthonormal rows.
void leave_span(const std::vector<double>& rows, int64_t d, std::vector<double>& x) {
  const std::vector<double> coordinates = blas::times_transposed(x, rows, d);
  const std::vector<double> inside =
      blas::times(coordinates, rows, static_cast<int64_t>(coordinates.size()));
  for (size_t i = 0; i < x.size(); ++i) x[i] -= inside[i];
}

// The largest eigenvalue of A outside of the rows' span, from below: Lanczos from a random vector.
// After 16 steps it is within a few per cent, even in a flat spectrum.
constexpr int kLanczosSteps = 16;
double largest_outside(const std::vector<double>& a, int64_t d, const std::vector<double>& rows) {
  std::mt19937 random(1);
  std::vector<double> x(static_cast<size_t>(d)), last(x.size());
  for (double& value : x) value = static_cast<double>(random()) / 4294967296.0 - 0.5;
  blas::Tridiagonal t;
  double length = 0;
  for (int step = 0; step < kLanczosSteps; ++step) {
    leave_span(rows, d, x);
    length = std::sqrt(blas::dot(x, x));
    // Nothing outside, or nothing new: rounding errors alone would be left to follow.
    if (!(length > 1e-12 * (t.diagonal.empty() ? 1 : t.diagonal.front() + length))) break;
    if (step > 0) t.off.push_back(length);
    for (double& value : x) value /= length;
    std::vector<double> next = blas::times_symmetric(x, a, d);
    t.diagonal.push_back(blas::dot(next, x));
    const double back = step > 0 ? t.off.back() : 0;
    for (size_t i = 0; i < x.size(); ++i) next[i] -= t.diagonal.back() * x[i] + back * last[i];
    last = std::move(x);
    x = std::move(next);
  }
  if (t.diagonal.empty()) return 0;
  t.off.resize(t.diagonal.size());
  return std::max(0.0, blas::eigenvalues(t).back());
}

// How many iterations more until the change is below `goal`, when it goes on shrinking as it did.
double iterations_left(double change, double last_change, double goal) {
  const double factor = change / last_change;
  return factor < 1 ? std::log(goal / change) / std::log(factor)
                    : std::numeric_limits<double>::infinity();
}

// What might be captured beyond `v`, see the header.
double missed_energy(const std::vector<double>& a, int64_t d, const Ritz& v) {
  const double outside = largest_outside(a, d, v.eigen.vectors);
  double sum = 0;
  for (size_t i = 0; i < v.residuals.size(); ++i) {
    const double half = (outside - v.eigen.values[i]) / 2;
    sum += half + std::hypot(half, v.residuals[i]);
  }
  return sum;
}

}  // namespace

double Decomposition::captured(int64_t k) const {
  SLUICE_CHECK(k >= 0 && static_cast<size_t>(k) <= values.size());
  return std::accumulate(values.begin(), values.begin() + k, 0.0);
}

Decomposition decompose(const std::vector<double>& a, int64_t d, int64_t k) {
  const auto start = std::chrono::steady_clock::now();
  Eigen eigen = top_eigen(a, d, k);
  return {.values = std::move(eigen.values),
          .vectors = std::move(eigen.vectors),
          .iterations = 0,
          .start_energy = 0,
          .inherited = false,
          .work = eigen_work(d, k),
          .seconds = seconds_since(start)};
}

Decomposition inherit(const std::vector<double>& a, int64_t d, std::span<const float> before,
                      const InheritOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t k = static_cast<int64_t>(before.size()) / d;
  const double total = blas::trace(a, d);
  Iterate v = make_iterate({before.begin(), before.end()}, a, d);
  const double start_energy = v.energy();
  double energy = start_energy;
  double last_change = 0;
  int iterations = 0, checks = 0;
  while (iterations < options.max_iterations) {
    blas::orthonormalise(v.products, d);
    v = make_iterate(std::move(v.products), a, d);
    ++iterations;
    const double change = std::abs(v.energy() - energy);
    energy = v.energy();
    if (change > options.tolerance * energy) {
      if (iterations > 1 &&
          iterations + iterations_left(change, last_change, options.tolerance * energy) >
              options.max_iterations)
        break;
      last_change = change;
      continue;
    }
    ++checks;
    Ritz found = ritz(v, d, k);
    if (missed_energy(a, d, found) > options.missed_limit * total) break;
    return {.values = std::move(found.eigen.values),
            .vectors = std::move(found.eigen.vectors),
            .iterations = iterations,
            .start_energy = start_energy,
            .inherited = true,
            .work = refine_work(d, k, iterations, checks),
            .seconds = seconds_since(start)};
  }
  Decomposition fresh = decompose(a, d, k);
  fresh.iterations = iterations;
  fresh.start_energy = start_energy;
  fresh.work += refine_work(d, k, iterations, checks);
  fresh.seconds = seconds_since(start);
  return fresh;
}

int affordable_iterations(int64_t d, int64_t k) {
  int iterations = 0;
  while (refine_work(d, k, iterations + 1, 1) < eigen_work(d, k) / 2) ++iterations;
  return iterations < 2 ? 0 : iterations;
}

double refine_work(int64_t d, int64_t k, int iterations, int checks) {
  const auto n = static_cast<double>(d), r = static_cast<double>(k);
  const double check = 3 * n * r * r + eigen_work(k, k) + kLanczosSteps * (n * n + 2 * n * r);
  return (iterations + 1) * r * n * n + iterations * 2 * (n * r * r - r * r * r / 3) +
         checks * check;
}

}  // namespace sluice::impl
