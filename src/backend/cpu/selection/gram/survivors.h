// What coordinates in a subspace leave to be multiplied at full width: docs/algorithm.md,
// section 5.

#pragma once

#include "backend/cpu/selection/gram/reduce.h"

namespace sluice::impl::cpu::selection {

// Which panels of a group a row must be multiplied with: bit i is panel i.
using Survivors = uint32_t;
static_assert(kGroupPanels <= 32);

// Multiplies coordinates of some rows with those of a group of panels and tells what survives of
// each row, (rows); candidates learn what is reached. products: room for (rows, group * nr).
void find_survivors(const Scan& scan, Range rows, Panels group, std::vector<float>& products,
                    std::span<Candidates> candidates, std::vector<Survivors>& survivors);

// Of the panels that survived and were multiplied at full width, adds what matters.
void reduce_survivors(const Scan& scan, const Query& query, const RowProducts& products,
                      Survivors survivors, Candidates& candidates);

// From the first to the last row of a tile that survives with a panel.
struct SurvivingRows {
  std::span<const Survivors> survivors;
  Range rows;
  Panels group;

  bool survives(int64_t row, int64_t panel) const {
    return (survivors[static_cast<size_t>(row - rows.begin)] >> (panel - group.begin) & 1) != 0;
  }
  Range operator()(Range tile, int64_t panel) const {
    while (tile.size() > 0 && !survives(tile.begin, panel)) ++tile.begin;
    while (tile.size() > 0 && !survives(tile.end - 1, panel)) --tile.end;
    return tile;
  }
};

}  // namespace sluice::impl::cpu::selection
