#include "subspace/blas.h"

#include <algorithm>

#include "core/error.h"
#include "subspace/openblas.h"

namespace sluice::impl::blas {
namespace {

int as_int(int64_t n) {
  SLUICE_CHECK(n >= 0 && n <= kMaxSide);
  return static_cast<int>(n);
}

// Rows of `size` numbers that are `width` wide.
int64_t rows_of(size_t size, int64_t width) {
  SLUICE_CHECK(width > 0 && size % static_cast<size_t>(width) == 0);
  return static_cast<int64_t>(size) / width;
}

void check_converged(int info) {
  SLUICE_CHECK(info >= 0);
  if (info > 0)
    throw Error("the eigenvectors of a second moment did not converge",
                "another calibration text may help");
}

// LAPACK routines say in work[0] how much memory they want when lwork is -1.
template <typename Call>
void with_workspace(const Call& call) {
  double wanted = 0;
  int length = -1;
  call(&wanted, &length);
  length = static_cast<int>(wanted);
  std::vector<double> work(static_cast<size_t>(std::max(length, 1)));
  call(work.data(), &length);
}

}  // namespace

void add_products(std::span<const double> rows, int64_t d, std::span<double> a) {
  const int n = as_int(d);
  SLUICE_CHECK(rows_of(a.size(), d) == d);
  openblas().dsyrk(CblasRowMajor, CblasUpper, CblasTrans, n, as_int(rows_of(rows.size(), d)), 1.0,
                   rows.data(), n, 1.0, a.data(), n);
}

std::vector<double> times_symmetric(std::span<const double> rows, std::span<const double> a,
                                    int64_t d) {
  const int n = as_int(d);
  SLUICE_CHECK(rows_of(a.size(), d) == d);
  std::vector<double> out(rows.size());
  openblas().dsymm(CblasRowMajor, CblasRight, CblasUpper, as_int(rows_of(rows.size(), d)), n, 1.0,
                   a.data(), n, rows.data(), n, 0.0, out.data(), n);
  return out;
}

std::vector<double> times(std::span<const double> a, std::span<const double> b, int64_t n) {
  const int64_t m = rows_of(a.size(), n), p = rows_of(b.size(), n);
  const int columns = as_int(p);
  std::vector<double> out(static_cast<size_t>(m * p));
  openblas().dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, as_int(m), columns, as_int(n), 1.0,
                   a.data(), as_int(n), b.data(), columns, 0.0, out.data(), columns);
  return out;
}

std::vector<double> times_transposed(std::span<const double> a, std::span<const double> b,
                                     int64_t n) {
  const int64_t m = rows_of(a.size(), n), p = rows_of(b.size(), n);
  std::vector<double> out(static_cast<size_t>(m * p));
  openblas().dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, as_int(m), as_int(p), as_int(n), 1.0,
                   a.data(), as_int(n), b.data(), as_int(n), 0.0, out.data(), as_int(p));
  return out;
}

double trace(std::span<const double> a, int64_t d) {
  double sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += a[static_cast<size_t>(i * d + i)];
  return sum;
}

double dot(std::span<const double> a, std::span<const double> b) {
  SLUICE_CHECK(a.size() == b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Rows here are columns to LAPACK: rows = R^T Q^T with orthonormal rows Q^T.
void orthonormalise(std::span<double> rows, int64_t d) {
  const int m = as_int(d), n = as_int(rows_of(rows.size(), d));
  SLUICE_CHECK(n <= m);
  std::vector<double> scales(static_cast<size_t>(n));
  int info = 0;
  with_workspace([&](double* work, const int* length) {
    openblas().dgeqrf(&m, &n, rows.data(), &m, scales.data(), work, length, &info);
  });
  SLUICE_CHECK(info == 0);
  with_workspace([&](double* work, const int* length) {
    openblas().dorgqr(&m, &n, &n, rows.data(), &m, scales.data(), work, length, &info);
  });
  SLUICE_CHECK(info == 0);
}

// The upper triangle by rows is the lower one by columns.
Tridiagonal reduce(std::span<double> a, int64_t d) {
  const int n = as_int(d);
  SLUICE_CHECK(rows_of(a.size(), d) == d);
  Tridiagonal t{std::vector<double>(static_cast<size_t>(d)),
                std::vector<double>(static_cast<size_t>(d)),
                std::vector<double>(static_cast<size_t>(d))};
  int info = 0;
  with_workspace([&](double* work, const int* length) {
    openblas().dsytrd("L", &n, a.data(), &n, t.diagonal.data(), t.off.data(), t.scales.data(), work,
                      length, &info, 1);
  });
  SLUICE_CHECK(info == 0);
  return t;
}

std::vector<double> eigenvalues(const Tridiagonal& t) {
  std::vector<double> values = t.diagonal, off = t.off;
  const int n = as_int(static_cast<int64_t>(values.size()));
  int info = 0;
  openblas().dsterf(&n, values.data(), off.data(), &info);
  check_converged(info);
  return values;
}

std::vector<double> eigenvectors(const Tridiagonal& t, std::span<const double> a, int64_t k) {
  const int n = as_int(static_cast<int64_t>(t.diagonal.size())), n_wanted = as_int(k);
  SLUICE_CHECK(n_wanted >= 1 && n_wanted <= n);
  const int first = n - n_wanted + 1;
  std::vector<double> diagonal = t.diagonal, off = t.off, values(static_cast<size_t>(n));
  std::vector<double> vectors(static_cast<size_t>(k) * t.diagonal.size());
  std::vector<int> support(2 * static_cast<size_t>(n_wanted)), integers(10 * t.diagonal.size());
  std::vector<double> work(18 * t.diagonal.size());
  const int length = static_cast<int>(work.size()), n_integers = static_cast<int>(integers.size());
  const double unused = 0;
  int found = 0, accurate = 1, info = 0;
  openblas().dstemr("V", "I", &n, diagonal.data(), off.data(), &unused, &unused, &first, &n, &found,
                    values.data(), vectors.data(), &n, &n_wanted, support.data(), &accurate,
                    work.data(), &length, integers.data(), &n_integers, &info, 1, 1);
  check_converged(info);
  SLUICE_CHECK(found == n_wanted);
  with_workspace([&](double* more, const int* more_length) {
    openblas().dormtr("L", "L", "N", &n, &n_wanted, a.data(), &n, t.scales.data(), vectors.data(),
                      &n, more, more_length, &info, 1, 1, 1);
  });
  SLUICE_CHECK(info == 0);
  return vectors;
}

}  // namespace sluice::impl::blas
