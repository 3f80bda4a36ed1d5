// Products of a few rows with a matrix, and what larger products leave to do on their sums.

#include <algorithm>

#include "backend/cuda/linear/kernels.h"
#include "backend/cuda/linear/row.cuh"
#include "backend/cuda/primitives/mma.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::linear {
namespace {

template <int kN>
__global__ void finish(ConstRowsView sums, const float* bias, Activation activation,
                       bool accumulate, RowsView out, int64_t n_out) {
  const int64_t row = blockIdx.x;
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kN;
  if (column >= n_out) return;
  float x[kN], old[kN], offset[kN] = {};
  load<kN>(sums, row, column, x);
  if (accumulate) load<kN>(out, row, column, old);
  if (bias != nullptr) load<kN>(vector_view(bias), 0, column, offset);
  for (int i = 0; i < kN; ++i) {
    x[i] += offset[i];
    x[i] = accumulate ? old[i] + x[i] : activate(activation, x[i]);
  }
  store<kN>(out, row, column, x);
}

constexpr int kWarps = 8;
constexpr int kTileRows = 16;  // of weights to a warp, the height of a matrix instruction
constexpr int kDepth = 32;     // of one step: 16 bytes of each row to each of four lanes
constexpr int kSteps = 4;      // in flight

struct FewRows {
  const std::byte* weights;
  int64_t weights_stride;  // in elements, here and below
  const std::byte* x;
  int64_t x_stride;
  int n_rows;
  int64_t n_out, depth;
  int split;  // warps that share a tile, each with its part of the depth; divides kWarps
  const float* bias;
  Activation activation;
  bool accumulate;
  RowsView out;
};

// Weights are the left operand and rows of x the columns of the right one. Both are read in the
// same order of depth, which is not the instruction's: a lane's 16 bytes serve two instructions.
__global__ void __launch_bounds__(32 * kWarps, 2) few_rows(FewRows args) {
  __shared__ float partial[kWarps][4][32];
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t tile = int64_t{blockIdx.x} * (kWarps / args.split) + warp / args.split;
  const int64_t row = tile * kTileRows + g;
  const bool has_low = row < args.n_out, has_high = row + 8 < args.n_out, has_x = g < args.n_rows;
  const std::byte* low = args.weights + 2 * (has_low ? row * args.weights_stride : 0);
  const std::byte* high = args.weights + 2 * (has_high ? (row + 8) * args.weights_stride : 0);
  const std::byte* x = args.x + 2 * (has_x ? g * args.x_stride : 0);

  // The weights of the next steps are loaded while these are multiplied, those of the first steps
  // while the kernel waits for the one ahead.
  float sums[4] = {};
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  const int64_t stride = int64_t{args.split} * kSteps * kDepth;
  const auto read = [&](int64_t k0, uint4(&lows)[kSteps], uint4(&highs)[kSteps]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t k = k0 + step * kDepth + 8 * t;
      lows[step] = k < args.depth && has_low ? read_once(low + 2 * k) : zeros;
      highs[step] = k < args.depth && has_high ? read_once(high + 2 * k) : zeros;
    }
  };
  int64_t k0 = int64_t{warp % args.split} * kSteps * kDepth;
  uint4 lows[kSteps], highs[kSteps];
  read(k0, lows, highs);
  wait_on_dependency();
  for (; k0 < args.depth; k0 += stride) {
    uint4 next_lows[kSteps], next_highs[kSteps], xs[kSteps];
    read(k0 + stride, next_lows, next_highs);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t k = k0 + step * kDepth + 8 * t;
      xs[step] = k < args.depth && has_x ? *reinterpret_cast<const uint4*>(x + 2 * k) : zeros;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 &a = lows[step], &b = highs[step];
      mma_bf16(sums, {a.x, b.x, a.y, b.y}, xs[step].x, xs[step].y);
      mma_bf16(sums, {a.z, b.z, a.w, b.w}, xs[step].z, xs[step].w);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      lows[step] = next_lows[step];
      highs[step] = next_highs[step];
    }
  }
  for (int i = 0; i < 4; ++i) partial[warp][i][lane] = sums[i];
  __syncthreads();
  if (warp % args.split != 0) return;
  for (int i = 0; i < 4; ++i) {
    float sum = 0;
    for (int part = 0; part < args.split; ++part) sum += partial[warp + part][i][lane];
    const int64_t n = row + (i < 2 ? 0 : 8);
    const int m = 2 * t + i % 2;
    if (n >= args.n_out || m >= args.n_rows) continue;
    if (args.bias != nullptr) sum += args.bias[n];
    float value[1] = {0};
    if (args.accumulate) load<1>(args.out, m, n, value);
    value[0] = args.accumulate ? value[0] + sum : activate(args.activation, sum);
    store<1>(args.out, m, n, value);
  }
}

// Of each warp, asked for while the work of others is waited for: together with the first 25 MB on
// an H200, half of its second-level cache.
constexpr int kPiecesAhead = 2;

__global__ void __launch_bounds__(32 * kRowWarps, kRowBlocks)
    one_row(RowWeights weights, const std::byte* x, RowOutput output, const int32_t* unwanted) {
  launch_dependents();
  const int64_t warp = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  uint4 piece[kPieceLoads];
  if (unwanted != nullptr) {
    wait_on_dependency();
    if (*unwanted != 0) return;
  }
  read_piece<kDenseRows>(weights, kDenseRows * warp, 0, piece);
  for (int i = 1; i <= kPiecesAhead; ++i)
    ask_for_piece<kDenseRows>(weights, kDenseRows * warp, i * kPieceDepth<kDenseRows>);
  wait_on_dependency();
  multiply_rows<kDenseRows>(weights, x, output, warp, int64_t{gridDim.x} * kRowWarps, piece);
}

}  // namespace

void finish_rows(Context& context, const FinishArgs& args) {
  const int64_t n_out = args.out.row_elements();
  const bool eights = by_eights(args.sums) && by_eights(args.out);
  const int64_t groups = ceil_div(n_out, eights ? 8 : 1);
  const int threads = groups >= 256 ? 256 : static_cast<int>(round_up(groups, 32));
  const dim3 grid(static_cast<unsigned>(args.out.rows()),
                  static_cast<unsigned>(ceil_div(groups, threads)));
  const auto kernel = eights ? finish<8> : finish<1>;
  kernel<<<grid, threads, 0, context.stream()>>>(view_of(args.sums), args.bias, args.activation,
                                                 args.accumulate, view_of(args.out), n_out);
  check_launch("finish");
}

void multiply_few_rows(Context& context, const FewRowsArgs& args) {
  SLUICE_CHECK(args.x.rows() > 0 && args.x.rows() <= kFewRows);
  FewRows few{.weights = args.weights.bytes(),
              .weights_stride = args.weights.row_stride(),
              .x = args.x.bytes(),
              .x_stride = args.x.row_stride(),
              .n_rows = static_cast<int>(args.x.rows()),
              .n_out = args.weights.rows(),
              .depth = args.weights.row_elements(),
              .split = 1,
              .bias = args.bias,
              .activation = args.activation,
              .accumulate = args.accumulate,
              .out = view_of(args.out)};
  // Enough warps to keep the memory busy, as long as each has something to read.
  const int64_t tiles = ceil_div(few.n_out, kTileRows);
  while (few.split < kWarps && tiles * few.split < 16 * int64_t{context.multiprocessors()} &&
         2 * few.split * kSteps * kDepth <= few.depth)
    few.split *= 2;
  const int64_t blocks = ceil_div(tiles, kWarps / few.split);
  launch_programmatic(context, "few_rows", few_rows, dim3(static_cast<unsigned>(blocks)),
                      32 * kWarps, few);
}

void multiply_one_row(Context& context, const FewRowsArgs& args, const int32_t* unwanted) {
  SLUICE_CHECK(args.x.rows() == 1);
  const RowWeights weights{.data = args.weights.bytes(),
                           .stride = args.weights.row_stride(),
                           .n_out = args.weights.rows(),
                           .depth = args.weights.row_elements()};
  const RowOutput output{.bias = args.bias,
                         .activation = args.activation,
                         .accumulate = args.accumulate,
                         .out = view_of(args.out)};
  const int64_t blocks = std::min(ceil_div(weights.n_out, kDenseRows * kRowWarps),
                                  int64_t{kRowBlocks} * context.multiprocessors());
  launch_programmatic(context, "one_row", one_row, dim3(static_cast<unsigned>(blocks)),
                      32 * kRowWarps, weights, args.x.bytes(), output, unwanted);
}

}  // namespace sluice::impl::cuda::linear
