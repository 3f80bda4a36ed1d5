#include "backend/cpu/gemm/blocks/tile_activations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "backend/cpu/gemm/blocks/activations.h"
#include "backend/cpu/primitives/rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::gemm {
namespace {

template <typename T>
void grow_to(std::vector<T>& values, int64_t n) {
  if (values.size() < static_cast<size_t>(n)) values.resize(static_cast<size_t>(n));
}

// 32 values of row `r` of a tile.
void put_values(const int8_t* q, int64_t r, int8_t* tile) {
  for (int64_t j = 0; j < kSubBlock / kChunk; ++j)
    std::memcpy(tile + (j * kTileX + r) * kChunk, q + j * kChunk, kChunk);
}

// a a b b for rows a, b.
void put_scale(float scale, int64_t r, float* tile) { tile[2 * r] = tile[2 * r + 1] = scale; }

}  // namespace

void TiledRows::set(const ConstTensor& x, int64_t first, int64_t n_rows, const RowSums& sums) {
  sums_ = sums;
  n_in_ = x.row_elements();
  n_sub_ = n_in_ / kSubBlock;
  n_tiles_ = (n_rows + kTileX - 1) / kTileX;
  grow_to(values_, n_tiles_ * kTileX * n_in_);
  grow_to(scales_, n_tiles_ * n_sub_ * 2 * kTileX);
  if (sums.products) grow_to(products_, n_tiles_ * n_sub_ * 2 * kTileX);
  n_starts_ = sums.offset != 0 ? kSubBlock / sums.scale_width : 0;
  grow_to(starts_, n_tiles_ * n_sub_ * n_starts_ * kTileX);
  of_tile_.resize(static_cast<size_t>(n_tiles_));
  parallel_for(n_tiles_, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) set_tile(x, first, n_rows, tile);
  });
  order_outliers();
}

void TiledRows::set_tile(const ConstTensor& x, int64_t first, int64_t n_rows, int64_t tile) {
  thread_local std::vector<float> wide;
  grow_to(wide, n_in_);
  of_tile_[static_cast<size_t>(tile)].clear();
  for (int64_t row = tile * kTileX; row < (tile + 1) * kTileX; ++row) {
    if (row >= n_rows) {
      std::fill_n(wide.data(), n_in_, 0.0f);
      set_row(row, wide.data());
    } else if (x.dtype() == DType::kF32) {
      set_row(row, x.row<float>(first + row));
    } else {
      primitives::widen(x.row<BFloat16>(first + row), n_in_, wide.data());
      set_row(row, wide.data());
    }
  }
}

void TiledRows::set_row(int64_t row, const float* x) {
  thread_local std::vector<int8_t> q;
  thread_local std::vector<float> row_scales;
  thread_local std::vector<int32_t> halves;
  grow_to(q, n_in_);
  grow_to(row_scales, n_sub_);
  grow_to(halves, 2 * n_sub_);
  const bool wants_sums = sums_.products || n_starts_ > 0;
  const float squares =
      quantise_row(x, n_sub_, q.data(), row_scales.data(), wants_sums ? halves.data() : nullptr);
  const float limit = kOutlier * std::sqrt(squares / static_cast<float>(n_in_));
  const int64_t tile = row / kTileX, r = row % kTileX;
  for (int64_t b = 0; b < n_sub_; ++b) {
    int8_t* values = q.data() + b * kSubBlock;
    float scale = row_scales[static_cast<size_t>(b)];
    int32_t* sums = halves.data() + 2 * b;
    if (127 * scale > limit) scale = split_block(x + b * kSubBlock, limit, row, b, values, sums);
    const int64_t at = tile * n_sub_ + b;
    put_values(values, r, values_.data() + at * kSubBlock * kTileX);
    put_scale(scale, r, scales_.data() + at * 2 * kTileX);
    set_sums(sums, scale, r, at);
  }
}

void TiledRows::set_sums(const int32_t* halves, float scale, int64_t r, int64_t at) {
  const int32_t sum = halves[0] + halves[1];
  if (sums_.products)
    put_scale(scale * static_cast<float>(sum), r, products_.data() + at * 2 * kTileX);
  for (int64_t i = 0; i < n_starts_; ++i)
    starts_[static_cast<size_t>((at * n_starts_ + i) * kTileX + r)] =
        sums_.offset * (n_starts_ == 1 ? sum : halves[i]);
}

float TiledRows::split_block(const float* x, float limit, int64_t row, int64_t b, int8_t* q,
                             int32_t* sums) {
  std::array<float, kSubBlock> rest;
  for (int64_t i = 0; i < kSubBlock; ++i) {
    const bool out = std::abs(x[i]) > limit;
    rest[static_cast<size_t>(i)] = out ? 0.0f : x[i];
    if (out)
      of_tile_[static_cast<size_t>(row / kTileX)].push_back(
          {.k = b * kSubBlock + i, .row = row, .value = x[i]});
  }
  float scale;
  quantise_row(rest.data(), 1, q, &scale, sums);
  return scale;
}

void TiledRows::order_outliers() {
  first_of_k_.assign(static_cast<size_t>(n_in_ + 1), 0);
  for (const auto& tile : of_tile_)
    for (const Outlier& outlier : tile) ++first_of_k_[static_cast<size_t>(outlier.k)];
  int64_t n = 0;
  for (int64_t& first : first_of_k_) n += std::exchange(first, n);
  outliers_.resize(static_cast<size_t>(n));
  std::vector<int64_t> next = first_of_k_;
  for (const auto& tile : of_tile_)
    for (const Outlier& outlier : tile)
      outliers_[static_cast<size_t>(next[static_cast<size_t>(outlier.k)]++)] = outlier;
}

std::span<const Outlier> TiledRows::outliers(int64_t begin, int64_t end) const {
  const int64_t first = first_of_k_[static_cast<size_t>(begin)];
  return std::span(outliers_).subspan(
      static_cast<size_t>(first),
      static_cast<size_t>(first_of_k_[static_cast<size_t>(end)] - first));
}

BlockTileArgs TiledRows::tile(int64_t tile, int64_t b) const {
  const int64_t at = tile * n_sub_ + b;
  BlockTileArgs args{};
  args.x = values_.data() + at * kSubBlock * kTileX;
  args.x_scales = scales_.data() + at * 2 * kTileX;
  if (sums_.products) args.x_products = products_.data() + at * 2 * kTileX;
  if (n_starts_ > 0) args.x_starts = starts_.data() + at * n_starts_ * kTileX;
  return args;
}

}  // namespace sluice::impl::cpu::gemm
