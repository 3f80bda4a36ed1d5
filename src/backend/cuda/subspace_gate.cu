// A gate that decides where its row is. docs/algorithm.md, section 4. Two kernels for a token:
//
//   project_row  h = V^T x and parts of ||x||^2; reads V
//   gated_row    every block sums up the verdict for itself and multiplies its rows of the output,
//                by the image where the row is near enough and else by the whole matrix, whose
//                other form it does not read; its first block keeps the books instead
//
//   ||x - V c||^2 = ||x||^2 - 2 c.h + c.c + c.(E c),   E = V^T V - 1,
//
// where c is h rounded, and E what V, as it is kept, is short of orthonormal. Most verdicts follow
// without E beside its diagonal, whose norm is known. Where that is too near to tell, the first
// block takes E, and where that cancels the definition, while the others wait for its word: it is
// started before them, and all of them are on the device at one time.

#include <algorithm>

#include "backend/cuda/early.cuh"
#include "backend/cuda/linear_row.cuh"
#include "backend/cuda/subspace_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 32 * kRowWarps;
constexpr int kDirections = 2;  // of V, to a block
constexpr int kChunks = 8;      // of each direction, to a warp at a time
// What f32 sums make the square of a residual err by, in parts of ||x||^2: a product of 16384
// elements with a direction of length 1 is 80 additions deep, each of which errs by 2^-24 of ||x||
// at most, and counts twice.
constexpr double kRoundOff = 1e-5;
// Up to here E is read for the books alone: by one block, so that more of it would be waited for.
constexpr int64_t kBooksRank = 512;

struct GateRow {
  RowWeights vectors;          // (rank, n_in)
  const float* diagonal;       // (rank) of E
  ConstRowsView overlaps;      // (rank, rank) twice E below the diagonal, zeros elsewhere
  double deviation, rounding;  // norms of E beside the diagonal, and of its rounding
  double epsilon;
  int32_t slow_tokens, retry_tokens;
  const std::byte* x;
  GateState* state;
  RowVerdict* verdict;  // of this row
  GateStep step;
  int32_t n_parts;  // of ||x||^2
  RowWeights image, dense;
  RowOutput output;
};

// Of the row at hand.
enum Way : int32_t { kOpen = -1, kSlow = 0, kFast = 1 };

__global__ void __launch_bounds__(kThreads, kRowBlocks) project_row(GateRow gate) {
  __shared__ float parts[kRowWarps][kDirections];
  __shared__ double shared[kRowWarps];
  let_next_begin();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t direction = int64_t{blockIdx.x} * kDirections, n_in = gate.vectors.depth;
  uint4 v[kDirections][kChunks];
  const auto place = [&](int64_t first, int c) {
    return first + (int64_t{c} * kRowWarps + warp) * kChunk + 8 * lane;
  };
  const auto read = [&](int64_t first) {
#pragma unroll
    for (int d = 0; d < kDirections; ++d)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int64_t row = direction + d, k = place(first, c);
        v[d][c] = row < gate.vectors.n_out && k < n_in
                      ? read_once(gate.vectors.data + 2 * (row * gate.vectors.stride + k))
                      : make_uint4(0, 0, 0, 0);
      }
  };
  read(0);
  wait_for_earlier();
  const bool passes_by = gate.state->to_skip > 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *gate.step.passes_by = passes_by ? 1 : 0;
    *gate.step.way = kOpen;
  }
  if (passes_by) return;
  float sums[kDirections] = {}, x[8], w[8];
  for (int64_t first = 0; first < n_in; first += kRowWarps * kChunks * kChunk) {
    if (first > 0) read(first);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t k = place(first, c);
      if (k >= n_in) continue;
      widen_eight(*reinterpret_cast<const uint4*>(gate.x + 2 * k), x);
#pragma unroll
      for (int d = 0; d < kDirections; ++d) {
        widen_eight(v[d][c], w);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[d] += x[i] * w[i];
      }
    }
  }
#pragma unroll
  for (int d = 0; d < kDirections; ++d) {
    for (int step = 16; step > 0; step /= 2) sums[d] += __shfl_xor_sync(0xffffffffu, sums[d], step);
    if (lane == 0) parts[warp][d] = sums[d];
  }
  // This block's part of ||x||^2, in float64: squares of numbers that are fine leave f32's range.
  const int64_t n_groups = n_in / 8, n_blocks = gridDim.x;
  double norm = 0;
  for (int64_t i = n_groups * blockIdx.x / n_blocks + threadIdx.x;
       i < n_groups * (blockIdx.x + 1) / n_blocks; i += kThreads) {
    widen_eight(*reinterpret_cast<const uint4*>(gate.x + 16 * i), x);
    for (int k = 0; k < 8; ++k) norm += double{x[k]} * x[k];
  }
  norm = block_sum(norm, shared);
  if (threadIdx.x == 0) gate.step.norms[blockIdx.x] = norm;
  const int64_t row = direction + threadIdx.x;
  if (threadIdx.x >= kDirections || row >= gate.vectors.n_out) return;
  float sum = 0;
  for (int w8 = 0; w8 < kRowWarps; ++w8) sum += parts[w8][threadIdx.x];
  gate.step.products[row] = sum;
  reinterpret_cast<__nv_bfloat16*>(gate.step.coordinates)[row] = __float2bfloat16_rn(sum);
}

__device__ double coordinate(const GateRow& gate, int64_t j) {
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(gate.step.coordinates)[j]);
}

// ||x||^2, ||x - V c||^2 without E beside its diagonal, and ||c||^2.
struct Estimate {
  double all, rest, inside;
};
__device__ Estimate estimate(const GateRow& gate) {
  __shared__ double shared[kRowWarps][3];
  double sums[3] = {};
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < gate.n_parts; i += kThreads)
    sums[0] += gate.step.norms[i];
  for (int64_t j = threadIdx.x; j < gate.vectors.n_out; j += kThreads) {
    const double c = coordinate(gate, j), h = gate.step.products[j];
    sums[1] += c * (2 * h - c - c * gate.diagonal[j]);
    sums[2] += c * c;
  }
  for (int i = 0; i < 3; ++i) {
    for (int step = 16; step > 0; step /= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][i] = sums[i];
  }
  __syncthreads();
  for (int i = 0; i < 3; ++i) {
    sums[i] = 0;
    for (int w = 0; w < kRowWarps; ++w) sums[i] += shared[w][i];
  }
  return {sums[0], sums[0] - sums[1], sums[2]};
}

// kOpen where the estimate, which errs by no more than `error`, is too near to epsilon, or not a
// number.
__device__ Way way_of(const GateRow& gate, const Estimate& found, double error) {
  const double edge = gate.epsilon * gate.epsilon * found.all;
  if (found.rest + error < edge) return kFast;
  if (found.rest - error > edge) return kSlow;
  return kOpen;
}
__device__ Way first_way(const GateRow& gate, const Estimate& found) {
  return way_of(gate, found, gate.deviation * found.inside + kRoundOff * found.all);
}

// c.(E c) beside the diagonal.
__device__ double overlap(const GateRow& gate, double* shared) {
  const int64_t rank = gate.vectors.n_out, lane = threadIdx.x % 32;
  double sum = 0;
  for (int64_t first = 0; first < rank; first += kChunk) {
    const int64_t k = first + 8 * lane;
    float c[8] = {};
    if (k < rank) widen_eight(*reinterpret_cast<const uint4*>(gate.step.coordinates + 2 * k), c);
#pragma unroll 16
    for (int64_t j = threadIdx.x / 32; j < rank; j += kRowWarps) {
      float e[8] = {}, dot = 0;
      if (k < j) load<8>(gate.overlaps, j, k, e);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot += e[i] * c[i];
      sum += dot * coordinate(gate, j);
    }
  }
  return block_sum(sum, shared);
}

// ||x - V c||^2 by its definition.
__device__ double explicit_rest(const GateRow& gate, double* shared) {
  double sum = 0;
  for (int64_t k = int64_t{threadIdx.x} * 8; k < gate.vectors.depth; k += 8 * kThreads) {
    float x[8], v[8];
    double rest[8];
    widen_eight(*reinterpret_cast<const uint4*>(gate.x + 2 * k), x);
    for (int i = 0; i < 8; ++i) rest[i] = x[i];
#pragma unroll 8
    for (int64_t j = 0; j < gate.vectors.n_out; ++j) {
      const double c = coordinate(gate, j);
      widen_eight(read_once(gate.vectors.data + 2 * (j * gate.vectors.stride + k)), v);
#pragma unroll
      for (int i = 0; i < 8; ++i) rest[i] -= c * v[i];
    }
    for (int i = 0; i < 8; ++i) sum += rest[i] * rest[i];
  }
  return block_sum(sum, shared);
}

__device__ float missed_share(double all, double rest) {
  const double share = all == 0 ? 0 : sqrt(fmax(rest, 0.0) / all);
  return isfinite(share) && isfinite(rest) ? static_cast<float>(share) : 1.0f;
}

// By one thread: what Bypass of src/layer/bypass.h does on the host.
__device__ void write_down(const GateRow& gate, const RowVerdict& verdict) {
  GateState state = *gate.state;
  *gate.verdict = verdict;
  if (verdict.residual < 0) {
    --state.to_skip;
  } else if (verdict.kept != 0) {
    state.slow_in_a_row = 0;
  } else if (++state.slow_in_a_row == gate.slow_tokens) {
    --state.slow_in_a_row;
    state.to_skip = gate.retry_tokens - 1;
  }
  *gate.state = state;
}

__device__ void keep_books(const GateRow& gate) {
  __shared__ double shared[kRowWarps];
  const int64_t n_ahead = gate.vectors.n_out <= kBooksRank ? gate.vectors.n_out : 0;
  for (int64_t j = threadIdx.x; j < n_ahead; j += kThreads)
    for (int64_t byte = 0; byte < 2 * j; byte += 128)
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(gate.overlaps.data +
                                                      2 * j * gate.overlaps.stride + byte));
  wait_for_earlier();
  if (*gate.step.passes_by != 0) {
    if (threadIdx.x == 0) write_down(gate, {.residual = -1, .kept = 0});
    return;
  }
  Estimate found = estimate(gate);
  Way way = first_way(gate, found);
  const auto tell = [&] {
    if (threadIdx.x == 0) atomicExch(gate.step.way, static_cast<int32_t>(way));
  };
  if (way != kOpen) tell();
  const bool open = way == kOpen;
  if (open || gate.vectors.n_out <= kBooksRank) found.rest += overlap(gate, shared);
  if (open) {
    way = way_of(gate, found, gate.rounding * found.inside + kRoundOff * found.all);
    if (way == kOpen) {
      found.rest = explicit_rest(gate, shared);
      way = missed_share(found.all, found.rest) <= gate.epsilon ? kFast : kSlow;
    }
    tell();
  }
  if (threadIdx.x == 0)
    write_down(gate, {.residual = missed_share(found.all, found.rest), .kept = way});
}

__device__ Way hear_way(const GateRow& gate) {
  __shared__ int32_t heard;
  if (threadIdx.x == 0) {
    while ((heard = *static_cast<volatile int32_t*>(gate.step.way)) == kOpen) __nanosleep(200);
  }
  __syncthreads();
  return static_cast<Way>(heard);
}

template <int kImageRows>
__global__ void __launch_bounds__(kThreads, kRowBlocks) gated_row(GateRow gate) {
  let_next_begin();
  if (blockIdx.x == 0) {
    keep_books(gate);
    return;
  }
  // Neighbours in different blocks: an image is small, and all multiprocessors shall read some.
  const int64_t n_blocks = gridDim.x - 1, n_warps = n_blocks * kRowWarps;
  const int64_t warp = threadIdx.x / 32 * n_blocks + blockIdx.x - 1;
  uint4 piece[kPieceLoads];
  read_piece<kImageRows>(gate.image, kImageRows * warp, 0, piece);
  wait_for_earlier();
  Way way = kSlow;
  if (*gate.step.passes_by == 0) {
    way = first_way(gate, estimate(gate));
    if (way == kOpen) way = hear_way(gate);
  }
  if (way == kFast) {
    multiply_rows<kImageRows>(gate.image, gate.step.coordinates, gate.output, warp, n_warps, piece);
    return;
  }
  read_piece<kDenseRows>(gate.dense, kDenseRows * warp, 0, piece);
  multiply_rows<kDenseRows>(gate.dense, gate.x, gate.output, warp, n_warps, piece);
}

// Leaves E beside its diagonal in `gram`.
__global__ void split_gram(RowsView gram, int64_t rank, float* diagonal, RowsView overlaps) {
  const int64_t j = blockIdx.x;
  for (int64_t k = threadIdx.x; k < rank; k += kThreads) {
    float value[1];
    load<1>(gram, j, k, value);
    const float twice[1] = {k < j ? 2 * value[0] : 0.0f}, none[1] = {0};
    store<1>(overlaps, j, k, twice);
    if (k != j) continue;
    diagonal[j] = value[0] - 1;
    store<1>(gram, j, k, none);
  }
}

__global__ void squares_of(ConstRowsView x, int64_t n_rows, int64_t d, double* sum) {
  __shared__ double shared[kRowWarps];
  double own = 0;
  for (int64_t row = blockIdx.x; row < n_rows; row += gridDim.x)
    for (int64_t i = threadIdx.x; i < d; i += kThreads) {
      float value[1];
      load<1>(x, row, i, value);
      own += double{value[0]} * value[0];
    }
  own = block_sum(own, shared);
  if (threadIdx.x == 0) *sum = own;
}

RowWeights weights_of(const ConstTensor& matrix) {
  return {.data = matrix.bytes(),
          .stride = matrix.row_stride(),
          .n_out = matrix.rows(),
          .depth = matrix.row_elements()};
}

}  // namespace

int64_t gate_parts(int64_t rank) { return ceil_div(rank, kDirections); }

void split_deviation(Context& context, Tensor gram, float* diagonal, Tensor overlaps) {
  split_gram<<<static_cast<unsigned>(gram.rows()), kThreads, 0, context.stream()>>>(
      view_of(gram), gram.rows(), diagonal, view_of(overlaps));
  check_launch("split_gram");
}

void sum_squares(Context& context, ConstTensor x, double* sum) {
  squares_of<<<1, kThreads, 0, context.stream()>>>(view_of(x), x.rows(), x.row_elements(), sum);
  check_launch("squares_of");
}

void run_gate(Context& context, const GateRowArgs& args) {
  const GateRow gate{.vectors = weights_of(args.vectors),
                     .diagonal = args.diagonal,
                     .overlaps = view_of(args.overlaps),
                     .deviation = args.deviation,
                     .rounding = args.rounding,
                     .epsilon = args.epsilon,
                     .slow_tokens = args.slow_tokens,
                     .retry_tokens = args.retry_tokens,
                     .x = args.x.bytes(),
                     .state = args.state,
                     .verdict = args.verdict,
                     .step = args.step,
                     .n_parts = static_cast<int32_t>(gate_parts(args.vectors.rows())),
                     .image = weights_of(args.image),
                     .dense = weights_of(args.dense),
                     .output = {.bias = args.bias,
                                .activation = args.activation,
                                .accumulate = args.accumulate,
                                .out = view_of(args.out)}};
  launch_early(context, "project_row", project_row, dim3(static_cast<unsigned>(gate.n_parts)),
               kThreads, gate);
  const auto kernel = gate.image.depth <= kPieceDepth<8>   ? gated_row<8>
                      : gate.image.depth <= kPieceDepth<4> ? gated_row<4>
                                                           : gated_row<2>;
  const int64_t blocks = std::min(1 + ceil_div(gate.dense.n_out, kDenseRows * kRowWarps),
                                  int64_t{kRowBlocks} * context.multiprocessors());
  launch_early(context, "gated_row", kernel, dim3(static_cast<unsigned>(blocks)), kThreads, gate);
}

}  // namespace sluice::cuda
