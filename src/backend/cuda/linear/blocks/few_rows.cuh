// Products of a few rows of x with weights in chunks, by tensor cores.
//
// A thread block takes a tile of 16 rows of weights at a time, its warps every eighth piece of 256
// columns. Each warp copies its next pieces to a ring in shared memory, so that many bytes are
// in flight at any time, the first ones while the kernel waits for the one ahead.
//
// The tensor cores multiply quants, whole numbers in bf16, with 8 columns of x at once. Scales hold
// for one step of 32 columns of weights. Where there are fewer than 8 rows of x, the columns are
// several steps of the same rows: every step of weights is multiplied with all of them, and what
// belongs to it is kept. So one scaling serves a whole batch of steps.

#pragma once

#include <algorithm>

#include "backend/cuda/linear/blocks/chunk.h"
#include "backend/cuda/linear/blocks/few_rows.h"
#include "backend/cuda/primitives/mma.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::linear {

constexpr int kBlockWarps = 8;
constexpr int kBlocksAtOnce = 2;     // of one multiprocessor
constexpr int kRingBytes = 8 << 10;  // of a warp, at most
constexpr int kPieceDepth = 256, kPieceSpans = kPieceDepth / kSpanDepth;

// A piece is one chunk of large blocks, four of small ones.
template <DType kType>
constexpr int kPieceBytes = kPieceDepth / ChunkFormat<kType>::kDepth* ChunkFormat<kType>::kBytes;
template <DType kType>
constexpr int kRingPieces = std::max(2, kRingBytes / kPieceBytes<kType>);
template <DType kType>
constexpr int kRingsBytes = kBlockWarps* kRingPieces<kType>* kPieceBytes<kType>;

// Of up to kRows rows of x: 1, 2, 4, 8, or 16 as two groups of 8.
template <int kRows>
struct RowsShape {
  static constexpr int kGroups = kRows / 8 + (kRows < 8 ? 1 : 0);
  static constexpr bool kShared = kRows < 8;  // columns of a product are several steps
  static constexpr int kBatchSpans = kShared ? 4 / kRows : 1;
  static constexpr int kBatches = kPieceSpans / kBatchSpans;
  static constexpr int kWords = kShared ? 1 : 2;  // of x to a lane in a batch, 16 bytes each
  static constexpr int kBatchDepth = kBatchSpans * kSpanDepth;
};

// Which piece a warp takes: pieces warp, warp + kBlockWarps … of every tile of its block.
struct PieceCursor {
  int64_t tile;
  int piece;

  __device__ PieceCursor(const BlockProduct& args, int warp)
      : tile(warp < args.n_pieces ? blockIdx.x : args.n_tiles), piece(warp) {}
  __device__ void advance(const BlockProduct& args, int warp) {
    piece += kBlockWarps;
    if (piece < args.n_pieces) return;
    piece = warp;
    tile += gridDim.x;
  }
};

// Asks for a piece, 16 bytes to a lane at a time: one group of copies. Chunks that the tile does
// not have are zeros.
template <DType kType>
__device__ __forceinline__ void ask_for_piece(const BlockProduct& args, const PieceCursor& at,
                                              std::byte* to, int lane) {
  constexpr int kCopies = kPieceBytes<kType> / 16;
  if (at.tile < args.n_tiles) {
    const int64_t first = int64_t{at.piece} * kPieceBytes<kType>;
    const std::byte* from = args.chunks + at.tile * args.tile_bytes + first;
    const auto left = static_cast<int>(min(args.tile_bytes - first, int64_t{kPieceBytes<kType>}));
#pragma unroll
    for (int i = 0; i < (kCopies + 31) / 32; ++i) {
      const int copy = 32 * i + lane;
      const bool exists = ChunkFormat<kType>::kLarge || 16 * copy < left;
      if (copy < kCopies) copy_async(to + 16 * copy, from + 16 * copy, exists);
    }
  }
  commit_copies();
}

// The right operand of a batch, whose first column is given.
template <int kRows>
struct BatchInput {
  uint4 words[RowsShape<kRows>::kWords][RowsShape<kRows>::kGroups];
};
template <DType kType, int kRows>
__device__ __forceinline__ void read_input(const BlockProduct& args, int column, int lane,
                                           BatchInput<kRows>& input) {
  using Rows = RowsShape<kRows>;
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int word = 0; word < Rows::kWords; ++word)
#pragma unroll
    for (int group = 0; group < Rows::kGroups; ++group) {
      const int row = Rows::kShared ? g % kRows : 8 * group + g;
      const int k = column + kStepDepth * (Rows::kShared ? g / kRows : word);
      uint4& to = input.words[word][group];
      to = make_uint4(0, 0, 0, 0);
      if (row >= args.n_rows || k >= args.depth) continue;
      const std::byte* from = args.x + 2 * (row * args.x_stride + k);
      if constexpr (ChunkFormat<kType>::kHalves) {
        const uint2 low = *reinterpret_cast<const uint2*>(from + 8 * t);
        const uint2 high = *reinterpret_cast<const uint2*>(from + 32 + 8 * t);
        to = make_uint4(low.x, low.y, high.x, high.y);
      } else {
        to = *reinterpret_cast<const uint4*>(from + 16 * t);
      }
    }
}

// Two bf16 numbers of one value.
__device__ constexpr uint32_t pair_of(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value) >> 16;
  return bits << 16 | bits;
}

// Sums of quants times x in a step or in a batch of them, as the tensor cores have them. q6_k has
// one for either half of a step; others use the first.
struct QuantSums {
  float at[2][4];
};

template <DType kType>
__device__ __forceinline__ QuantSums multiply_quants(const uint32_t (&pairs)[2][4],
                                                     const uint4& x) {
  QuantSums sums{};
  const uint32_t b[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t a[4] = {pairs[0][2 * half], pairs[1][2 * half], pairs[0][2 * half + 1],
                           pairs[1][2 * half + 1]};
    mma_bf16(sums.at[ChunkFormat<kType>::kHalves ? half : 0], a, b[2 * half], b[2 * half + 1]);
  }
  return sums;
}

// Adds a number times every column of x.
template <DType kType>
__device__ __forceinline__ void add_columns(float factor, const uint4& x, QuantSums& sums) {
  const uint32_t same = pair_of(factor);
  const uint32_t a[4] = {same, same, same, same}, b[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int half = 0; half < 2; ++half)
    mma_bf16(sums.at[ChunkFormat<kType>::kHalves ? half : 0], a, b[2 * half], b[2 * half + 1]);
}

// sums += scale (quants - offset) + minimum, of numbers [row][column] 2 row + column. scales: of
// each column.
template <DType kType>
__device__ __forceinline__ void add_scaled(QuantSums quants, const uint4& x,
                                           const StepScales (&scales)[2], float (&sums)[4]) {
  using Format = ChunkFormat<kType>;
  constexpr auto kOffset = static_cast<float>(Format::kOffset);
  QuantSums columns{};
  if constexpr (Format::kMinima) add_columns<kType>(1.0f, x, columns);
  if constexpr (!Format::kMinima && !Format::kWhole) add_columns<kType>(-kOffset, x, quants);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const StepScales& own = scales[i % 2];
    const int row = i / 2;
    sums[i] = fmaf(own.scale[0][row], quants.at[0][i], sums[i]);
    if constexpr (Format::kHalves) sums[i] = fmaf(own.scale[1][row], quants.at[1][i], sums[i]);
    if constexpr (Format::kMinima)
      sums[i] =
          fmaf(fmaf(-kOffset, own.scale[0][row], own.minimum[row]), columns.at[0][i], sums[i]);
  }
}

// Scales of a step of the piece.
template <DType kType>
__device__ __forceinline__ StepScales scales_of(const std::byte* piece, int step, int lane,
                                                const CommonScales& common) {
  using Format = ChunkFormat<kType>;
  const int span = step / 2;
  return Format::kLarge
             ? read_scales<kType>(piece, span, step % 2, lane, common)
             : read_scales<kType>(piece + span * Format::kBytes, 0, step % 2, lane, common);
}

template <DType kType, int kRows>
__device__ __forceinline__ void multiply_batch(const std::byte* piece, int batch, int lane,
                                               const CommonScales& common,
                                               const BatchInput<kRows>& input,
                                               float (&sums)[RowsShape<kRows>::kGroups][4]) {
  using Format = ChunkFormat<kType>;
  using Rows = RowsShape<kRows>;
  const int t = lane % 4;
  QuantSums kept{};
#pragma unroll
  for (int i = 0; i < Rows::kBatchSpans; ++i) {
    const int span = Rows::kBatchSpans * batch + i;
    uint32_t pairs[2][2][4];
    read_pairs<kType>(Format::kLarge ? piece : piece + span * Format::kBytes,
                      Format::kLarge ? span : 0, lane, pairs);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      if constexpr (Rows::kShared) {
        const QuantSums own = multiply_quants<kType>(pairs[step], input.words[0][0]);
        const int mine = 2 * i + step;  // columns mine kRows … belong to this step
#pragma unroll
        for (int j = 0; j < 8; ++j)
          if ((2 * t + j % 2) / kRows == mine) kept.at[j / 4][j % 4] = own.at[j / 4][j % 4];
      } else {
        const StepScales one = scales_of<kType>(piece, 2 * span + step, lane, common);
        const StepScales scales[2] = {one, one};
#pragma unroll
        for (int group = 0; group < Rows::kGroups; ++group) {
          const uint4& x = input.words[step][group];
          add_scaled<kType>(multiply_quants<kType>(pairs[step], x), x, scales, sums[group]);
        }
      }
    }
  }
  if constexpr (Rows::kShared) {
    const int first = 2 * Rows::kBatchSpans * batch + 2 * t / kRows;
    const StepScales low = scales_of<kType>(piece, first, lane, common);
    const StepScales scales[2] = {
        low, kRows == 1 ? scales_of<kType>(piece, first + 1, lane, common) : low};
    add_scaled<kType>(kept, input.words[0][0], scales, sums[0]);
  }
}

// A tile's sums of one warp, [group][as the tensor cores have them][lane].
template <int kRows>
using Partial = float[kBlockWarps][4 * RowsShape<kRows>::kGroups][32];

// Adds what the warps have and finishes it: a column of the product to a thread.
template <int kRows>
__device__ __forceinline__ void finish_tile(const BlockProduct& args, const Partial<kRows>& partial,
                                            int64_t tile) {
  constexpr int kColumns = 8 * RowsShape<kRows>::kGroups;
  const int place = static_cast<int>(threadIdx.x), row = place / kColumns;
  if (place >= kTileHeight * kColumns) return;  // whole warps
  const int m = place % kColumns;
  const int i = m / 8 * 4 + row / 8 * 2 + m % 2, lane = row % 8 * 4 + m % 8 / 2;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kBlockWarps; ++warp) sum += partial[warp][i][lane];
#pragma unroll
  for (int step = kRows; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const int64_t n = tile * kTileHeight + row;
  if (m >= args.n_rows || n >= args.n_out) return;
  if (args.bias != nullptr) sum += args.bias[n];
  float value[1] = {0};
  if (args.accumulate) load<1>(args.out, m, n, value);
  value[0] = args.accumulate ? value[0] + sum : activate(args.activation, sum);
  store<1>(args.out, m, n, value);
}

template <DType kType, int kRows>
__global__ void __launch_bounds__(32 * kBlockWarps, kBlocksAtOnce)
    few_block_rows(BlockProduct args) {
  using Rows = RowsShape<kRows>;
  constexpr int kRing = kRingPieces<kType>;
  extern __shared__ uint4 rings[];
  __shared__ Partial<kRows> partial[2];
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::byte* ring = reinterpret_cast<std::byte*>(rings) + warp * kRing * kPieceBytes<kType>;
  PieceCursor ahead(args, warp);
  for (int i = 0; i < kRing; ++i) {
    ask_for_piece<kType>(args, ahead, ring + i * kPieceBytes<kType>, lane);
    ahead.advance(args, warp);
  }
  wait_on_dependency();

  BatchInput<kRows> input, next;
  read_input<kType, kRows>(args, warp * kPieceDepth, lane, input);
  int slot = 0, parity = 0;
  for (int64_t tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x, parity ^= 1) {
    float sums[Rows::kGroups][4] = {};
    for (int piece = warp; piece < args.n_pieces; piece += kBlockWarps) {
      std::byte* at = ring + slot * kPieceBytes<kType>;
      wait_copies<kRing - 1>();
      __syncwarp();
      const CommonScales common = read_common<kType>(at, lane);
      const int after = piece + kBlockWarps < args.n_pieces ? piece + kBlockWarps : warp;
#pragma unroll kRows == 16 ? 1 : 2
      for (int batch = 0; batch < Rows::kBatches; ++batch) {
        read_input<kType, kRows>(args,
                                 batch + 1 < Rows::kBatches
                                     ? piece * kPieceDepth + (batch + 1) * Rows::kBatchDepth
                                     : after * kPieceDepth,
                                 lane, next);
        multiply_batch<kType, kRows>(at, batch, lane, common, input, sums);
        input = next;
      }
      __syncwarp();  // all lanes have read what is overwritten next
      ask_for_piece<kType>(args, ahead, at, lane);
      ahead.advance(args, warp);
      slot = slot + 1 < kRing ? slot + 1 : 0;
    }
#pragma unroll
    for (int i = 0; i < 4 * Rows::kGroups; ++i) partial[parity][warp][i][lane] = sums[i / 4][i % 4];
    __syncthreads();
    finish_tile<kRows>(args, partial[parity], tile);
  }
  wait_copies<0>();
}

template <DType kType, int kRows>
void launch_few_block_rows(Context& context, const BlockProduct& product) {
  const auto kernel = few_block_rows<kType, kRows>;
  static const bool allowed = [&] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kRingsBytes<kType>),
          "shared memory of few_block_rows");
    return true;
  }();
  SLUICE_CHECK(allowed);
  const int64_t blocks =
      std::min(product.n_tiles, int64_t{kBlocksAtOnce} * context.multiprocessors());
  launch_programmatic(context, "few_block_rows", kernel,
                      LaunchShape{.grid = dim3(static_cast<unsigned>(blocks)),
                                  .threads = 32 * kBlockWarps,
                                  .shared_bytes = kRingsBytes<kType>},
                      product);
}

template <DType kType>
void multiply_by_rows(Context& context, const BlockProduct& product) {
  if (product.n_rows == 1)
    launch_few_block_rows<kType, 1>(context, product);
  else if (product.n_rows <= 4)
    launch_few_block_rows<kType, 4>(context, product);
  else if (product.n_rows <= 8)
    launch_few_block_rows<kType, 8>(context, product);
  else
    launch_few_block_rows<kType, 16>(context, product);
}

}  // namespace sluice::impl::cuda::linear
