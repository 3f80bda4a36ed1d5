// Orthonormal bases to select with: good ones, and useless ones.

#pragma once

#include "parity/select_cases.h"

namespace sluice::impl::test {

// Orthonormal rows that span the first `rank` of `rows` (n, d_model) that are independent, then of
// random ones.
inline std::shared_ptr<const SelectionBasis> basis_of(std::vector<float> rows, int64_t rank,
                                                      int64_t d_model, uint32_t seed) {
  const auto more = random_values((rank + 2) * d_model, seed);
  rows.insert(rows.end(), more.begin(), more.end());
  const auto d = static_cast<size_t>(d_model);
  std::vector<std::vector<double>> basis;
  for (size_t first = 0; first < rows.size(); first += d) {
    if (static_cast<int64_t>(basis.size()) == rank) break;
    std::vector<double> x(rows.begin() + static_cast<int64_t>(first),
                          rows.begin() + static_cast<int64_t>(first + d));
    const auto norm = [&] {
      double sum = 0;
      for (const double e : x) sum += e * e;
      return std::sqrt(sum);
    };
    const double size = norm();
    for (int round = 0; round < 2; ++round)
      for (const auto& v : basis) {
        double along = 0;
        for (size_t i = 0; i < d; ++i) along += x[i] * v[i];
        for (size_t i = 0; i < d; ++i) x[i] -= along * v[i];
      }
    const double rest = norm();
    if (!(rest > 1e-6 * size)) continue;
    for (double& e : x) e /= rest;
    basis.push_back(std::move(x));
  }
  std::vector<float> vectors;
  for (const auto& v : basis)
    for (const double e : v) vectors.push_back(static_cast<float>(e));
  return std::make_shared<SelectionBasis>(rank, d_model, std::move(vectors));
}

inline std::shared_ptr<const SelectionBasis> random_basis(int64_t rank, int64_t d_model,
                                                          uint32_t seed) {
  return basis_of({}, rank, d_model, seed);
}

}  // namespace sluice::impl::test
