// What attention on Hopper's matrix units keeps in shared memory, dense or of mode `keys`: a tile
// of queries, and tiles of keys and values by turns.

#pragma once

namespace sluice::cuda::hopper {

constexpr int kRows = 128;  // queries of a tile
constexpr int kThreads = 3 * 128;
constexpr int kWarps = 8;       // that multiply
constexpr int kRowBytes = 128;  // of a panel: 64 numbers
constexpr int kStages = 2;
constexpr int kEightRows = 8 * kRowBytes;

template <int kD>
struct Sizes {
  static constexpr int kPanels = kD / 64;
  static constexpr int kKeys = kD <= 128 ? 128 : 64;
  static constexpr int kQueryPanel = kRows * kRowBytes, kKeyPanel = kKeys * kRowBytes;  // bytes
  static constexpr int kQueryBytes = kPanels * kQueryPanel, kTileBytes = kPanels * kKeyPanel;
  // Sums are kept in parts as wide as one instruction.
  static constexpr int kParts = kD <= 128 ? 1 : 2;
  static constexpr int kPartPanels = kPanels / kParts;
  static constexpr int kBytes = kQueryBytes + 2 * kStages * kTileBytes + 1024;  // for alignment
};

}  // namespace sluice::cuda::hopper
