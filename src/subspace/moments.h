// Second moments of activations, Σ x xᵀ in float64, summed up row by row as a text streams through
// a model. One takes d² numbers of 8 bytes: 288 KiB at d = 192, 2 GiB at d = 16384.

#pragma once

#include <vector>

#include "core/tensor.h"

namespace sluice::impl {

class Moments {
 public:
  explicit Moments(int64_t d);

  // rows: (n, d) f32 or bf16 in host memory.
  void add(const ConstTensor& rows);
  // Every row made one long first; rows of zeros, and those `skip` names, are left out. skip: (n),
  // or empty.
  void add_unit(const ConstTensor& rows, const std::vector<bool>& skip);

  int64_t d() const { return d_; }
  int64_t n_rows() const { return n_rows_; }
  // The sum of squares of all numbers. Not finite when an activation was not.
  double total() const;
  // (d, d), upper triangle. Whoever takes it ends the sum.
  std::vector<double> take() { return std::move(sum_); }

  static int64_t bytes(int64_t d) { return d * d * static_cast<int64_t>(sizeof(double)); }

 private:
  int64_t d_, n_rows_ = 0;
  std::vector<double> sum_;    // (d, d)
  std::vector<double> block_;  // scratch: some rows in float64
};

}  // namespace sluice::impl
