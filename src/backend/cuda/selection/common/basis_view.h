// Selection in a basis on a device: what the kernels share.

#pragma once

#include <cstdint>

namespace sluice::impl::cuda::selection {

// cascade-cover in a basis (docs/algorithm.md, section 5): pairs are looked at by their coordinates
// first. A cosine is within `error` and the product of the two rests of the product of the
// coordinates; what that leaves open is decided as ever. Where it leaves many pairs of two tiles of
// rows and one of columns open, these are multiplied again, at full width.
constexpr int kMostRank = 256;       // directions that are used
constexpr int kItemRows = 256;       // two tiles of rows
constexpr int kMostOpenPairs = 256;  // of 256 x 256: as many take as long as the products
constexpr int kMostOpenOfRow = 32;   // of 256: a token's are summed one after the other

struct BasisProgress {  // on the device, zeros at first
  int64_t dropped;      // pairs decided by their coordinates
  int32_t projected;    // kept columns whose coordinates are known
  int32_t given_up;
  // Of the chunk at hand.
  int32_t used;                    // whether its tokens are looked at in the basis
  int32_t n_items[2], n_again[2];  // of products with a list: pairs of tiles, and those done again
};

struct BasisView {
  int rank = 0;       // 0: there is none
  int64_t width = 0;  // coordinates of a row: the rank rounded up for whole tiles
  bool always = false;
  double error = 0;      // of products; the rests come on top
  double row_error = 0;  // of a row's coordinates, as a vector, before they are rounded
  double deviation = 0;  // of the vectors, from orthonormal ones
  const uint16_t* vectors = nullptr;  // (rank, padded) bf16
  // Coordinates in bf16, of the chunk's tokens, of listed ones and of kept columns; and at least
  // the norms of what they leave out.
  uint16_t *rows = nullptr, *listed = nullptr, *columns = nullptr;
  float *rest = nullptr, *listed_rest = nullptr, *column_rest = nullptr;
  // (pairs of row tiles, tiles): how many pairs are left open, more than kMostOpenPairs where the
  // tiles are multiplied again, and how many are below all thresholds.
  int32_t *open = nullptr, *below = nullptr;
  int64_t n_items = 0;       // of these
  int32_t* again = nullptr;  // (2, pairs of row tiles, tiles) numbers of items, as in `open`
  BasisProgress* progress = nullptr;
};

}  // namespace sluice::impl::cuda::selection
