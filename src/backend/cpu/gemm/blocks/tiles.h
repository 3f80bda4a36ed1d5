// Products of many rows of activations with blocks, as 8-bit integers in register tiles: a panel of
// the matrix, which is one or several groups of eight rows side by side, by four rows of
// activations. Weights are unpacked to one byte each, once for all rows of activations; sums of 32
// products (q6_k: 16) are exact, scaled in float32 and summed in registers.
//
// Plain data alone: files for one instruction set include this.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::gemm {

constexpr int64_t kTileX = 4;  // rows of activations
// With at most this many rows of activations the kernels of kernel.h multiply blocks as they are:
// there every row costs as much as the first.
constexpr int64_t kFewRows = 8;

// Where a group of a panel is unpacked to. Scales of two rows of activations a, b come as a a b b.
// Those of weights come one to a row, or, with `pairs`, as a b a b: the order of the products of
// two rows with two.
struct UnpackedGroup {
  int8_t* weights;  // (n_in / together, rows of the panel, together)
  float* scales;  // (n_in / scale_width, rows), with pairs (n_in / scale_width, 4 pairs of rows, 4)
  float* minima;  // likewise, where the type has them or the kernel wants them for every type
};

// Blocks of a group, `n_blocks` of the type.
using UnpackFunction = void (*)(const std::byte* blocks, int64_t n_blocks,
                                const UnpackedGroup& out);

struct BlockTileArgs {
  UnpackedGroup w;          // the first group of the panel
  int64_t groups;           // that the panel has, at most BlockTileKernel's
  const int8_t* x;          // (n, 4 chunks, 4 rows, 8)
  const float* x_scales;    // (n, 2 pairs of rows, 4)
  const float* x_products;  // likewise, scale times the sum of 32 values; for minima
  const int32_t* x_starts;  // (n, 32 / scale_width, 4 rows), offset times the sum of values
  int64_t n;                // sub-blocks of 32
  float* out;               // (4, rows of the panel): those of groups that it lacks may be written
  int64_t out_stride;
  bool accumulate;  // add to out instead of replacing it
};
using BlockTileFunction = void (*)(const BlockTileArgs& args);

struct BlockTileKernel {
  const char* name;
  int64_t together;      // weights of a row that lie together, unpacked
  int64_t panel_groups;  // side by side, unpacked
  bool pairs;            // of scales of weights
  // nullptr for a type that has no tiles.
  UnpackFunction (*unpack)(DType type);
  BlockTileFunction (*tile)(DType type);
  // Minima for every type: what a type takes off its weights is in there.
  bool minima = false;
  // Unpacked weights are unsigned: sums begin with what they lack, unsigned_offset() of layout.h,
  // times the sum of the activations.
  bool unsigned_weights = false;
  // Rows of activations for which the kernels of kernel.h are faster, at most.
  int64_t few_rows = kFewRows;
};

// nullptr where this CPU or build lacks the instructions.
const BlockTileKernel* block_tiles_i8mm();     // Arm FEAT_I8MM
const BlockTileKernel* block_tiles_dotprod();  // Arm FEAT_DotProd
const BlockTileKernel* block_tiles_avx2();     // x86 AVX2, FMA, F16C
const BlockTileKernel* block_tiles_avx512();   // x86 AVX-512 BW, DQ
const BlockTileKernel* block_tiles_vnni();     // x86 AVX-512 VNNI
// The fastest here for a type, or nullptr where its expanded weights are multiplied faster.
const BlockTileKernel* block_tiles(DType type);

}  // namespace sluice::impl::cpu::gemm
