// Random orthonormal rows and second moments with a known spectrum.

#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "subspace/blas.h"

namespace sluice::impl::test {

// (n, d)
inline std::vector<double> random_rows(int64_t n, int64_t d, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> rows(static_cast<size_t>(n * d));
  for (double& x : rows) x = normal(random);
  return rows;
}

inline std::vector<double> random_orthonormal(int64_t n, int64_t d, uint32_t seed) {
  std::vector<double> rows = random_rows(n, d, seed);
  blas::orthonormalise(rows, d);
  return rows;
}

// Σ values[i] v_i v_iᵀ for the rows v_i of `vectors`, (d, d), upper triangle.
inline std::vector<double> moment_of(const std::vector<double>& values,
                                     const std::vector<double>& vectors) {
  const size_t d = values.size();
  std::vector<double> rows = vectors;
  for (size_t i = 0; i < d; ++i)
    for (size_t j = 0; j < d; ++j) rows[i * d + j] *= std::sqrt(values[i]);
  std::vector<double> a(d * d);
  blas::add_products(rows, static_cast<int64_t>(d), a);
  return a;
}

inline std::vector<float> as_floats(const std::vector<double>& values) {
  std::vector<float> out;
  for (const double x : values) out.push_back(static_cast<float>(x));
  return out;
}

// The largest |V Vᵀ - I|.
inline double orthonormal_error(const std::vector<double>& rows, int64_t d) {
  const std::vector<double> gram = blas::times_transposed(rows, rows, d);
  const size_t k = rows.size() / static_cast<size_t>(d);
  double worst = 0;
  for (size_t i = 0; i < k; ++i)
    for (size_t j = 0; j < k; ++j)
      worst = std::max(worst, std::abs(gram[i * k + j] - (i == j ? 1.0 : 0.0)));
  return worst;
}

}  // namespace sluice::impl::test
