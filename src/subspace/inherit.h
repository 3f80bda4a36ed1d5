// Bases of second moments: a fresh decomposition, or one inherited across depth. The basis of the
// layer before is refined by orthogonal iteration, V <- orth(A V), until the energy tr(Vᵀ A V) that
// it captures changes by less than 1e-4 of itself; a Rayleigh-Ritz step then sorts it.
//
// The energy also stands still where V spans the wrong eigenvectors exactly, or where it moves too
// slowly to be seen. So what V leaves out is looked at. Let mu be the largest eigenvalue of A
// outside of V (Lanczos from a random vector) and b_i = ‖A v_i - theta_i v_i‖, what couples v_i
// with the outside. Were each v_i coupled with a direction of its own there, the best k directions
// would capture Σ (mu - theta_i)/2 + sqrt(((mu - theta_i)/2)² + b_i²) more. Where that is above
// 5e-4 of all energy (half of what a fresh decomposition may be ahead, since Lanczos sees mu from
// below), V is not good enough. Then, and as soon as the energy's pace shows that max_iterations
// will not do, a fresh decomposition is made after all. docs/algorithm.md, section 4.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::impl {

struct Decomposition {
  std::vector<double> values;   // eigenvalues, descending: d of them when fresh, k when inherited
  std::vector<double> vectors;  // (k, d) orthonormal rows
  int iterations = 0;           // of refinement; 0 when none was tried
  double start_energy = 0;      // captured by the basis of the layer before as it was
  bool inherited = false;       // false: LAPACK made it, possibly after iterations in vain
  double work = 0;              // multiply-adds, by eigen_work and refine_work
  double seconds = 0;           // measured

  double captured(int64_t k) const;  // the sum of the first k eigenvalues
};

struct InheritOptions {
  double tolerance = 1e-4;     // of the captured energy, between iterations
  double missed_limit = 5e-4;  // of all energy: what directions outside might add
  int max_iterations = 16;
};

// As many iterations as take half the work of a fresh decomposition, all told, so that a failure
// costs less than a success saves; 0 where that is fewer than two, because one alone settles only
// what needs no refining. At k = d/4 it is 0: a single product A V is 27% of a fresh decomposition.
int affordable_iterations(int64_t d, int64_t k);

// a: symmetric (d, d) by its upper triangle.
Decomposition decompose(const std::vector<double>& a, int64_t d, int64_t k);

// before: (k, d) orthonormal rows to begin with.
Decomposition inherit(const std::vector<double>& a, int64_t d, std::span<const float> before,
                      const InheritOptions& options);

// Multiply-adds of refining (k, d) rows: one product with A more than there are iterations, k d²
// each; a Householder QR per iteration, 2 (d k² - k³/3); and per check of the result a
// Rayleigh-Ritz step, 3 d k² + eigen_work(k, k), and 16 steps of Lanczos, d² + 2 d k each.
double refine_work(int64_t d, int64_t k, int iterations, int checks);

}  // namespace sluice::impl
