// The one place that knows OpenBLAS: float64 products and LAPACK, row-major, on the threads of
// core/threads.h.
//
// A symmetric matrix is (d, d) with its upper triangle filled; the rest is never read.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::impl::blas {

// LAPACK counts in 32 bits, and a matrix of this side is 16 GiB.
inline constexpr int64_t kMaxSide = 46340;

// a += rowsᵀ rows; rows is (n, d), a symmetric.
void add_products(std::span<const double> rows, int64_t d, std::span<double> a);

// rows a; rows is (n, d), a symmetric (d, d).
std::vector<double> times_symmetric(std::span<const double> rows, std::span<const double> a,
                                    int64_t d);

// a b; a is (m, n), b (n, p).
std::vector<double> times(std::span<const double> a, std::span<const double> b, int64_t n);
// a bᵀ; a is (m, n), b (p, n).
std::vector<double> times_transposed(std::span<const double> a, std::span<const double> b,
                                     int64_t n);

double dot(std::span<const double> a, std::span<const double> b);
double trace(std::span<const double> a, int64_t d);  // of a (d, d)

// Makes rows (n, d), n <= d, orthonormal; they go on spanning what they spanned. Rows that depend
// on earlier ones become some other direction.
void orthonormalise(std::span<double> rows, int64_t d);

// A symmetric matrix as a tridiagonal one of the same eigenvalues. `a` is overwritten by how to
// come back.
struct Tridiagonal {
  std::vector<double> diagonal, off;  // (d), (d - 1 used)
  std::vector<double> scales;         // of the reflections
};
Tridiagonal reduce(std::span<double> a, int64_t d);
// All eigenvalues, ascending. Throws Error when they do not converge.
std::vector<double> eigenvalues(const Tridiagonal& t);
// Eigenvectors of the k largest eigenvalues, (k, d), ascending; `a` as reduce() left it.
std::vector<double> eigenvectors(const Tridiagonal& t, std::span<const double> a, int64_t k);

}  // namespace sluice::impl::blas
