#include "subspace/running.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "subspace/blas.h"
#include "subspace/eigen.h"

namespace sluice::impl {
namespace {

using Matrix = std::vector<double>;

double sum_of_first(const std::vector<double>& values, int64_t k) {
  return std::accumulate(values.begin(), values.begin() + k, 0.0);
}

// The leading eigenvectors of A outside of the rows V: those of (1 - VᵀV) A (1 - VᵀV).
Matrix leading_outside(const RunningArgs& args, const Matrix& products, int64_t count) {
  const auto n = static_cast<size_t>(args.d), k = static_cast<size_t>(args.k);
  const Matrix inner = blas::times_transposed(products, args.before, args.d);  // V A Vᵀ
  const Matrix folded = blas::times(inner, args.before, args.k);               // V A Vᵀ V
  Matrix rest = args.a;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = i; j < n; ++j) {
      double sum = 0;
      for (size_t m = 0; m < k; ++m) {
        const double vi = args.before[m * n + i], vj = args.before[m * n + j];
        sum += vi * (products[m * n + j] - folded[m * n + j]) + products[m * n + i] * vj;
      }
      rest[i * n + j] -= sum;
    }
  Matrix found = top_eigen(std::move(rest), args.d, count).vectors;
  // Eigenvectors of tiny eigenvalues may lean on V again, by round-off.
  const Matrix inside = blas::times_transposed(found, args.before, args.d);
  const Matrix lean = blas::times(inside, args.before, args.k);
  for (size_t i = 0; i < found.size(); ++i) found[i] -= lean[i];
  blas::orthonormalise(found, args.d);
  return found;
}

// Rayleigh-Ritz on the first n_rows of `rows`; inner: rows A rowsᵀ, n_all wide.
Eigen ritz(const Matrix& inner, int64_t n_all, int64_t n_rows, int64_t k) {
  const auto n = static_cast<size_t>(n_rows);
  Matrix part(n * n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) part[i * n + j] = inner[i * static_cast<size_t>(n_all) + j];
  return top_eigen(std::move(part), n_rows, k);
}

RunningBasis afresh(const RunningArgs& args, double total) {
  Eigen eigen = top_eigen(args.a, args.d, args.k);
  return {.vectors = std::move(eigen.vectors),
          .updates = args.k,
          .residual = 1,
          .energy = sum_of_first(eigen.values, args.k) / total};
}

}  // namespace

RunningBasis run_basis(const RunningArgs& args) {
  const double total = blas::trace(args.a, args.d);
  SLUICE_CHECK(total > 0 && args.k >= 1 && args.k <= args.d);
  if (args.before.empty()) return afresh(args, total);
  const Matrix products = blas::times_symmetric(args.before, args.a, args.d);
  const double energy = blas::dot(args.before, products) / total;
  const double residual = std::max(0.0, 1 - energy);
  if (residual <= args.threshold)
    return {.vectors = {args.before.begin(), args.before.end()},
            .updates = 0,
            .residual = residual,
            .energy = energy};

  const int64_t most =
      std::min(args.k, args.d - args.k + 1) - 1;  // fewer than k, and than are left
  if (args.threshold > 0 && most > 0) {
    Matrix rows(args.before.begin(), args.before.end());
    const Matrix outside = leading_outside(args, products, most);
    rows.insert(rows.end(), outside.begin(), outside.end());
    const int64_t n_all = args.k + most;
    const Matrix inner =
        blas::times_transposed(rows, blas::times_symmetric(rows, args.a, args.d), args.d);
    const auto energy_with = [&](int64_t joined) {
      return sum_of_first(ritz(inner, n_all, args.k + joined, args.k).values, args.k) / total;
    };
    // More directions never capture less, so the fewest are found by halving.
    int64_t low = 1, high = most + 1;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (1 - energy_with(middle) <= args.threshold)
        high = middle;
      else
        low = middle + 1;
    }
    if (low <= most) {
      const Eigen best = ritz(inner, n_all, args.k + low, args.k);
      rows.resize(static_cast<size_t>((args.k + low) * args.d));
      return {.vectors = blas::times(best.vectors, rows, args.k + low),
              .updates = low,
              .residual = residual,
              .energy = sum_of_first(best.values, args.k) / total};
    }
  }
  RunningBasis fresh = afresh(args, total);
  fresh.residual = residual;
  return fresh;
}

double running_work(int64_t d, int64_t k, bool updated) {
  const double look = static_cast<double>(k) * static_cast<double>(d) * static_cast<double>(d);
  return look + (updated ? eigen_work(d, k) : 0);
}

}  // namespace sluice::impl
