// Activations for tiles of blocks (gemm/blocks/tiles.h): four rows side by side, rounded to 8 bits
// with a scale to 32 values, as in gemm/blocks/activations.h. A value above kOutlier times its
// row's root mean square is not rounded: it is zero in the tile, and multiplied by itself.

#pragma once

#include <span>
#include <vector>

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"
#include "core/tensor.h"

namespace sluice::impl::cpu::gemm {

struct Outlier {
  int64_t k, row;  // the row counted from the first of those that were set
  float value;
};

// What tiles want of the sums of values.
struct RowSums {
  bool products = false;            // x_products, for weights with minima
  int32_t offset = 0;               // x_starts, where it is not 0,
  int64_t scale_width = kSubBlock;  // one to as many values
};

class TiledRows {
 public:
  // Rows [first, first + n_rows) of x, f32 or bf16.
  void set(const ConstTensor& x, int64_t first, int64_t n_rows, const RowSums& sums);

  int64_t tiles() const { return n_tiles_; }
  // Tile `tile` from sub-block `b` on: the fields of x.
  BlockTileArgs tile(int64_t tile, int64_t b) const;
  // Outliers of k in [begin, end), ordered by k, then by row.
  std::span<const Outlier> outliers(int64_t begin, int64_t end) const;

 private:
  void set_tile(const ConstTensor& x, int64_t first, int64_t n_rows, int64_t tile);
  void set_row(int64_t row, const float* x);
  // Rounds sub-block b of a row without its values above `limit`. `sums` are those of every 16
  // rounded values.
  float split_block(const float* x, float limit, int64_t row, int64_t b, int8_t* q, int32_t* sums);
  // What tiles want of the sums of each 16 values of row r of sub-block `at`, counted over all
  // tiles.
  void set_sums(const int32_t* halves, float scale, int64_t r, int64_t at);
  void order_outliers();

  RowSums sums_;
  int64_t n_in_ = 0, n_sub_ = 0, n_tiles_ = 0;
  int64_t n_starts_ = 0;                       // of a row of a sub-block
  std::vector<int8_t> values_;                 // (tiles, n_in / 32, 4 chunks, 4 rows, 8)
  std::vector<float> scales_, products_;       // (tiles, n_in / 32, 2 pairs, 4)
  std::vector<int32_t> starts_;                // (tiles, n_in / scale_width, 4 rows)
  std::vector<std::vector<Outlier>> of_tile_;  // (tiles)
  std::vector<Outlier> outliers_;              // ordered
  std::vector<int64_t> first_of_k_;            // (n_in + 1), in outliers_
};

}  // namespace sluice::impl::cpu::gemm
