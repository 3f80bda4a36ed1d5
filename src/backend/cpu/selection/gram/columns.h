// The rows that later tokens are compared with, packed into panels (gemm/gemm.h) once and for all.

#pragma once

#include <unordered_map>

#include "backend/cpu/selection/gram/rows.h"

namespace sluice::impl::cpu::selection {

// Columns only ever come to the end. A mask says of every column whether it counts in one kind of
// comparison; no column counts until count_in.
class Columns {
 public:
  Columns(const gemm::Kernel& kernel, int64_t d_model, size_t n_masks);

  // Rows `picked` of rows, in that order; returns the column of the first.
  int64_t append(const Rows& rows, std::span<const int64_t> picked);
  void clear();

  int64_t size() const { return static_cast<int64_t>(columns_.size()); }
  int64_t n_panels() const { return kernel_->panels(size()); }
  const Row& operator[](int64_t column) const { return columns_[static_cast<size_t>(column)]; }
  // Panel from depth k on, a multiple of kq.
  const std::byte* panel(int64_t panel, int64_t k) const;
  // The largest rounding of a panel's columns.
  double rounding(int64_t panel) const { return rounding_[static_cast<size_t>(panel)]; }
  // Packed inverse norms, padded with zeros to whole panels.
  const float* inverses() const { return inverses_.data(); }
  // Likewise.
  const float* residuals() const { return residuals_.data(); }

  void count_in(size_t mask, int64_t column) { masks_[mask][static_cast<size_t>(column)] = 0; }
  // The same, unless an equal row of an earlier position counts already: ties go to that one, so
  // this one could never be nearest, and crowds of equal rows stay out of the comparisons.
  void count_in_once(size_t mask, int64_t column);
  bool counts(size_t mask, int64_t column) const {
    return masks_[mask][static_cast<size_t>(column)] == 0;
  }
  // 0 where a column counts, else -infinity; padded to whole panels.
  const float* mask(size_t mask) const { return masks_[mask].data(); }

  // The row as it was given: in place, or rebuilt in scratch (d_model).
  const float* exact(int64_t column, float* scratch) const;
  // The row as it is packed, (padded k) of the kernel's type.
  void unpack(int64_t column, std::byte* to) const;
  int64_t bytes() const;

 private:
  // Panels come in chunks, so that growing moves nothing.
  static constexpr int64_t kChunkPanels = 8;
  int64_t chunk_columns() const { return kChunkPanels * kernel_->nr; }
  void grow(int64_t n);  // makes room for so many columns
  void pack(const Rows& rows, int64_t i, int64_t column);
  int64_t group_bytes() const { return kernel_->kq * element_bytes(kernel_->b_dtype); }
  int64_t n_groups() const { return kernel_->padded_k(d_model_) / kernel_->kq; }
  const std::byte* first_group(int64_t column) const;
  uint64_t hash_of(int64_t column);

  const gemm::Kernel* kernel_;
  int64_t d_model_;
  std::vector<Buffer> panels_;  // each (kChunkPanels, padded k, nr), see gemm/gemm.h
  // Each (kChunkPanels * nr, d_model) f32: rows whose packed form is rounded; else empty.
  std::vector<Buffer> exact_rows_;
  bool keeps_exact_rows_ = false;
  std::vector<Row> columns_;
  std::vector<float> inverses_, residuals_, rounding_;
  std::vector<std::vector<float>> masks_;
  std::unordered_map<uint64_t, int64_t> firsts_;  // (row, mask) hashed -> a column that counts
  int64_t hashed_column_ = -1;                    // the last, and its hash
  uint64_t hash_ = 0;
};

}  // namespace sluice::impl::cpu::selection
