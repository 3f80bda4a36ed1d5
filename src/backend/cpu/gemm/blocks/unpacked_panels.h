// Panels of a matrix in blocks as a kernel of tiles (gemm/blocks/tiles.h) wants them unpacked, in
// memory of the thread.

#pragma once

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"

namespace sluice::impl::cpu::gemm {

class UnpackedPanels {
 public:
  // Room for `depth` inputs of as many panels as fit `bytes` and have `most_groups` groups, but for
  // one at least. A thread has one such object at a time.
  UnpackedPanels(const BlockTileKernel& kernel, DType type, int64_t depth, int64_t bytes,
                 int64_t most_groups);

  int64_t capacity() const { return capacity_ * kernel_.panel_groups; }  // groups
  UnpackedGroup group(int64_t index) const;
  // Weight k of the rows of the first n_groups groups.
  void read_column(int64_t k, int64_t n_groups, float* column) const;

 private:
  int64_t panel_bytes() const { return weight_bytes_ + (minima_ ? 2 : 1) * scale_bytes_; }

  const BlockTileKernel& kernel_;
  BlockLayout layout_;
  bool minima_;
  int64_t panel_rows_, panel_scales_;   // a panel's scales: one to a row or, in pairs, two
  int64_t weight_bytes_, scale_bytes_;  // of a panel
  int64_t capacity_;                    // panels
  std::byte* memory_;
};

}  // namespace sluice::impl::cpu::gemm
