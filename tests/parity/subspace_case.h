// Orthonormal directions and rows near their span, for the tests of gated linear layers.

#pragma once

#include "parity/backends.h"
#include "parity/compare.h"

namespace sluice::impl::test {

inline double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

// (rank, n) random orthonormal rows: Gram-Schmidt in float64, twice.
inline std::vector<float> orthonormal_rows(int64_t rank, int64_t n, uint32_t seed) {
  const std::vector<float> random = random_values(rank * n, seed);
  std::vector<double> rows(random.begin(), random.end());
  for (int64_t j = 0; j < rank; ++j)
    for (int pass = 0; pass < 2; ++pass) {
      double* row = rows.data() + j * n;
      for (int64_t other = 0; other < j; ++other) {
        const double* with = rows.data() + other * n;
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += row[i] * with[i];
        for (int64_t i = 0; i < n; ++i) row[i] -= sum * with[i];
      }
      double norm = 0;
      for (int64_t i = 0; i < n; ++i) norm += row[i] * row[i];
      for (int64_t i = 0; i < n; ++i) row[i] /= std::sqrt(norm);
    }
  return {rows.begin(), rows.end()};
}

struct Projection {
  std::vector<float> coordinates;  // (n_rows, rank)
  std::vector<float> residuals;    // (n_rows)
};

struct SubspaceCase {
  int64_t n_rows, n_in, rank;
  std::vector<float> vectors;  // (rank, n_in)
  std::vector<float> x;        // (n_rows, n_in)

  Projection project(Backend& backend, int64_t pad = 0) const {
    const auto basis = backend.make_basis(vectors, rank, n_in);
    const DType dtype = backend.compute_dtype();
    const DeviceTensor in(backend, dtype, {n_rows, n_in}, x, pad);
    const DeviceTensor out = unwritten(backend, dtype, {n_rows, rank}, pad);
    Projection result;
    result.residuals.assign(static_cast<size_t>(n_rows), NAN);
    backend.project({.basis = basis.get(),
                     .x = in.view(),
                     .coordinates = out.view(),
                     .residuals = result.residuals});
    result.coordinates = out.values();
    return result;
  }

  // ||x - V c|| / ||x|| of a row in float64, from what the dtype holds.
  double explicit_residual(DType dtype, const std::vector<float>& coordinates, int64_t row) const {
    double norm = 0, missed = 0;
    for (int64_t i = 0; i < n_in; ++i) {
      const double element = rounded(dtype, x[static_cast<size_t>(row * n_in + i)]);
      double rest = element;
      for (int64_t j = 0; j < rank; ++j)
        rest -= double{rounded(dtype, vectors[static_cast<size_t>(j * n_in + i)])} *
                coordinates[static_cast<size_t>(row * rank + j)];
      norm += element * element;
      missed += rest * rest;
    }
    return std::sqrt(missed / norm);
  }
};

}  // namespace sluice::impl::test
