// Rows and columns as coordinates in a basis (docs/algorithm.md, section 5): products of rank
// numbers instead of d_model, and how far they may be from the cosine.

#pragma once

#include "backend/cpu/selection/gram/columns.h"
#include "backend/select_basis.h"

namespace sluice::impl::cpu::selection {

// In the rows and columns below, rounding bounds the error of the coordinates and residual the
// norm of what they leave out, both for a row of norm 1.
class Subspace {
 public:
  Subspace(const gemm::Kernel& kernel, std::shared_ptr<const SelectionBasis> basis);

  // The first n rows of a block, in place of those before.
  void take_rows(const Rows& rows, int64_t n);
  // Columns up to n, those that are not yet here.
  void take_columns(const Columns& columns, int64_t n);
  void clear() { columns_.clear(); }

  int64_t rank() const { return basis_->rank(); }
  const Rows& rows() const { return rows_; }
  const Columns& columns() const { return columns_; }
  int64_t bytes() const { return columns_.bytes(); }

  // The exact cosine of row a and column b is within this, and the product of their residuals, of
  // the product of their coordinates.
  double error(double rounding_a, double rounding_b) const;

 private:
  // Packed rows to be projected: some that follow each other, `stride` elements apart.
  struct Packed {
    const std::byte* rows;
    int64_t stride;
  };
  template <typename Load>
  void project(int64_t n, const Load& load, Rows& to);
  void finish(const Row& row, float* coordinates, int64_t i, Rows& to) const;

  const gemm::Kernel* kernel_;
  std::shared_ptr<const SelectionBasis> basis_;
  double deviation_;  // of the vectors as they are packed
  Buffer vectors_;    // (panels of rank, padded d_model, nr)
  Rows rows_, fresh_;
  Columns columns_;
};

}  // namespace sluice::impl::cpu::selection
