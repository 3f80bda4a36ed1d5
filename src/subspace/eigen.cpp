#include "subspace/eigen.h"

#include <algorithm>

#include "core/error.h"
#include "subspace/blas.h"

namespace sluice::impl {

Eigen top_eigen(std::vector<double> a, int64_t d, int64_t k) {
  SLUICE_CHECK(d > 0 && k >= 0 && k <= d);
  const blas::Tridiagonal t = blas::reduce(a, d);
  Eigen out{blas::eigenvalues(t), {}};
  std::reverse(out.values.begin(), out.values.end());
  for (double& value : out.values) value = std::max(value, 0.0);
  if (k == 0) return out;
  const std::vector<double> ascending = blas::eigenvectors(t, a, k);
  out.vectors.resize(ascending.size());
  for (int64_t i = 0; i < k; ++i)
    std::copy_n(ascending.begin() + (k - 1 - i) * d, d, out.vectors.begin() + i * d);
  return out;
}

double eigen_work(int64_t d, int64_t k) {
  const auto n = static_cast<double>(d);
  return n * n * (2 * n / 3 + static_cast<double>(k));
}

}  // namespace sluice::impl
