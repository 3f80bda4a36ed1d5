#include "subspace/angles.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "subspace/blas.h"
#include "subspace/eigen.h"

namespace sluice::impl {

Coherence coherence(std::span<const float> a, std::span<const float> b, int64_t d) {
  SLUICE_CHECK(a.size() == b.size() && !a.empty() && a.size() % static_cast<size_t>(d) == 0);
  const int64_t k = static_cast<int64_t>(a.size()) / d;
  const std::vector<double> first(a.begin(), a.end()), second(b.begin(), b.end());
  const std::vector<double> cosines = blas::times_transposed(first, second, d);
  // Squared singular values are the eigenvalues of C Cᵀ. Below 1e-8 they are lost in round-off.
  std::vector<double> squares(static_cast<size_t>(k * k));
  blas::add_products(cosines, k, squares);
  const std::vector<double> values = top_eigen(squares, k, 0).values;
  return {.mean_squared = blas::dot(cosines, cosines) / static_cast<double>(k),
          .smallest = std::sqrt(std::min(values.back(), 1.0))};
}

}  // namespace sluice::impl
