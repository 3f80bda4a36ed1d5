// The symmetric eigenproblem of a second moment, through LAPACK: reduction to tridiagonal form,
// all eigenvalues, and eigenvectors of the largest ones only, transformed back.

#pragma once

#include <cstdint>
#include <vector>

namespace sluice::impl {

struct Eigen {
  std::vector<double> values;   // (d) descending; none below zero: a second moment has no such
  std::vector<double> vectors;  // (k, d): row i belongs to values[i]
};

// a: symmetric (d, d) by its upper triangle, finite, without negative eigenvalues beyond round-off.
Eigen top_eigen(std::vector<double> a, int64_t d, int64_t k);

// Multiply-adds of it by its leading terms: 2/3 d³ for the reduction, k d² for turning k vectors
// back. (The tridiagonal problem itself is of order d² and d k.)
double eigen_work(int64_t d, int64_t k);

}  // namespace sluice::impl
