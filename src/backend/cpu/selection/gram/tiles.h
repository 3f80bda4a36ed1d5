// Rows multiplied with panels of columns, tile by tile.
//
// Blocking as in gemm/linear_packed.cpp, from the inside out: a register tile of mr x nr;
// kDepth of k, so that a slice of a panel stays in the first cache; a group of tiles that meets
// it there; all rows of the block; kGroupPanels panels, whose products stay in the second cache
// until reduced.

#pragma once

#include <algorithm>

#include "backend/cpu/selection/gram/scan.h"

namespace sluice::impl::cpu::selection {

constexpr int64_t kGroupPanels = 16;
constexpr int64_t kTileGroup = 2;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
  // Part i of n.
  Range part(int64_t i, int64_t n) const {
    return {begin + size() * i / n, begin + size() * (i + 1) / n};
  }
};
using Panels = Range;

struct Products {
  float* data;  // (rows, panels * nr)
  int64_t stride;
};

inline Range whole(Range tile, int64_t) { return tile; }

inline int64_t panel_columns(const Scan& scan, int64_t panel) {
  return std::min(scan.kernel->nr, scan.columns->size() - panel * scan.kernel->nr);
}

// Multiplies rows with a group of panels: of each tile those rows that `wanted` says.
template <typename Wanted>
int64_t multiply_panels(const Scan& scan, Range rows, Panels panels, Products c,
                        const Wanted& wanted) {
  const gemm::Kernel& kernel = *scan.kernel;
  const int64_t k_end = kernel.padded_k(scan.d_model);
  const int64_t a_bytes = element_bytes(kernel.a_dtype);
  int64_t pairs = 0;
  for (int64_t k = 0; k < k_end; k += kDepth)
    for (int64_t group = rows.begin; group < rows.end; group += kTileGroup * kernel.mr)
      for (int64_t panel = panels.begin; panel < panels.end; ++panel)
        for (int64_t i = group; i < std::min(rows.end, group + kTileGroup * kernel.mr);
             i += kernel.mr) {
          const Range tile = wanted(Range{i, std::min(i + kernel.mr, rows.end)}, panel);
          if (tile.size() == 0) continue;
          if (k == 0) pairs += tile.size() * panel_columns(scan, panel);
          kernel.tiles[tile.size() - 1]({.a = scan.rows->packed(tile.begin) + k * a_bytes,
                                         .a_stride = scan.rows->stride(),
                                         .b = scan.columns->panel(panel, k),
                                         .k = std::min(kDepth, k_end - k),
                                         .c = c.data + (tile.begin - rows.begin) * c.stride +
                                              (panel - panels.begin) * kernel.nr,
                                         .c_stride = c.stride,
                                         .accumulate = k > 0});
        }
  return pairs;
}

}  // namespace sluice::impl::cpu::selection
