// A gate that decides where its row is, docs/algorithm.md section 4, in one kernel: every block
// takes a direction of V and then, when all have done so, sums up the verdict for itself and
// multiplies its rows of the output, by the image where the row is near enough and else by the
// whole matrix, whose other form it does not read. All blocks are on the device at one time.
//
//   ||x - V c||^2 = ||x||^2 - 2 c.h + c.c + c.(E c),   h = V^T x,   E = V^T V - 1,
//
// where c is h rounded, and E what V, as it is kept, is short of orthonormal. Most verdicts follow
// without E beside its diagonal, whose norm is known. Where that is too near to tell, the first
// block takes E, and where that cancels the definition, while the others wait for its word. Of the
// other residuals nobody waits for E: settle_residuals adds it when somebody asks.

#include <algorithm>

#include "backend/cuda/early.cuh"
#include "backend/cuda/linear_row.cuh"
#include "backend/cuda/subspace_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kDirections = 2;  // of V, to a block at a time
constexpr int kChunks = 4;      // of each, to a warp at a time
constexpr int64_t kPass = kWarps * kChunks * kChunk;
// What f32 sums make the square of a residual err by, in parts of ||x||^2: a product of 16384
// elements with a direction of length 1 is 80 additions deep, each of which errs by 2^-24 of ||x||
// at most, and counts twice.
constexpr double kRoundOff = 1e-5;

struct GateRow {
  RowWeights vectors;          // (rank, n_in)
  const float* diagonal;       // (rank) of E
  ConstRowsView overlaps;      // (rank, rank) twice E below the diagonal, zeros elsewhere
  double deviation, rounding;  // norms of E beside the diagonal, and of its rounding
  double epsilon;
  int32_t slow_tokens, retry_tokens;
  const std::byte* x;
  GateState* state;
  GateEntry* entry;
  GateStep step;
  RowWeights image, dense;
  RowOutput output;
};

// Of the row at hand.
enum Way : int32_t { kOpen = -1, kSlow = 0, kFast = 1 };

// This warp's part of a direction, from element `first` on.
__device__ int64_t place(int64_t first, int chunk) {
  return first + (int64_t{chunk} * kWarps + threadIdx.x / 32) * kChunk + threadIdx.x % 32 * 8;
}
// A block takes every gridDim.x-th direction.
using Directions = uint4[kDirections][kChunks];
__device__ void read_directions(const RowWeights& vectors, int64_t direction, int64_t first,
                                Directions& v) {
#pragma unroll
  for (int d = 0; d < kDirections; ++d)
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t row = direction + d * int64_t{gridDim.x}, k = place(first, c);
      v[d][c] = row < vectors.n_out && k < vectors.depth
                    ? read_once(vectors.data + 2 * (row * vectors.stride + k))
                    : make_uint4(0, 0, 0, 0);
    }
}

__device__ void read_x(const GateRow& gate, int64_t first, uint4 (&x)[kChunks]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int64_t k = place(first, c);
    x[c] = k < gate.vectors.depth ? *reinterpret_cast<const uint4*>(gate.x + 2 * k)
                                  : make_uint4(0, 0, 0, 0);
  }
}

// The products with this block's directions and its part of ||x||^2. v and bits: of the first
// directions, and of x, what is read at a time.
__device__ void project(const GateRow& gate, Directions& v, uint4 (&bits)[kChunks]) {
  __shared__ float parts[kWarps][kDirections];
  __shared__ double norms[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t n_in = gate.vectors.depth;
  // In float64: squares of numbers that are fine leave f32's range.
  const int64_t n_groups = n_in / 8, block = blockIdx.x, n_blocks = gridDim.x;
  double norm = 0;
  float x[8], w[8];
  for (int64_t i = n_groups * block / n_blocks + threadIdx.x; i < n_groups * (block + 1) / n_blocks;
       i += kThreads) {
    widen_eight(*reinterpret_cast<const uint4*>(gate.x + 16 * i), x);
    for (int k = 0; k < 8; ++k) norm += double{x[k]} * x[k];
  }
  for (int64_t direction = block; direction < gate.vectors.n_out;
       direction += kDirections * n_blocks) {
    float sums[kDirections] = {};
    for (int64_t first = 0; first < n_in; first += kPass) {
      if (first > 0 || direction != block) {
        read_directions(gate.vectors, direction, first, v);
        read_x(gate, first, bits);
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        widen_eight(bits[c], x);
#pragma unroll
        for (int d = 0; d < kDirections; ++d) {
          widen_eight(v[d][c], w);
#pragma unroll
          for (int i = 0; i < 8; ++i) sums[d] += x[i] * w[i];
        }
      }
    }
    __syncthreads();  // the parts of the last directions are read
#pragma unroll
    for (int d = 0; d < kDirections; ++d) {
      for (int step = 16; step > 0; step /= 2)
        sums[d] += __shfl_xor_sync(0xffffffffu, sums[d], step);
      if (lane == 0) parts[warp][d] = sums[d];
    }
    __syncthreads();
    if (threadIdx.x != 0) continue;
    for (int d = 0; d < kDirections; ++d) {
      const int64_t row = direction + d * n_blocks;
      if (row >= gate.vectors.n_out) continue;
      float sum = 0;
      for (int i = 0; i < kWarps; ++i) sum += parts[i][d];
      gate.step.products[row] = sum;
      reinterpret_cast<__nv_bfloat16*>(gate.step.coordinates)[row] = __float2bfloat16_rn(sum);
    }
  }
  for (int step = 16; step > 0; step /= 2) norm += __shfl_xor_sync(0xffffffffu, norm, step);
  if (lane == 0) norms[warp] = norm;
  __syncthreads();
  if (threadIdx.x != 0) return;
  norm = 0;
  for (const double part : norms) norm += part;
  gate.step.norms[block] = norm;
}

// Blocks wait for each other: thread 0 counts them. The count goes on from row to row.
__device__ uint32_t count_when_all_are_there(const GateStep& step) {
  const uint32_t count = *static_cast<volatile uint32_t*>(step.arrived);
  return count - count % gridDim.x + gridDim.x;
}
// This block has read the state, and its thread 0 has written what it had to.
__device__ void arrive(const GateStep& step) {
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(step.arrived) : "memory");
}
__device__ void wait_for_all(const GateStep& step, uint32_t count) {
  if (threadIdx.x == 0) {
    uint32_t now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n"
                   : "=r"(now)
                   : "l"(step.arrived)
                   : "memory");
    } while (static_cast<int32_t>(now - count) < 0);
  }
  __syncthreads();
}

__device__ double coordinate(const GateRow& gate, int64_t j) {
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(gate.step.coordinates)[j]);
}

// ||x||^2, ||x - V c||^2 without E beside its diagonal, and ||c||^2.
struct Estimate {
  double all, rest, inside;
};
__device__ Estimate estimate(const GateRow& gate) {
  __shared__ double shared[kWarps][3];
  double sums[3] = {};
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(gridDim.x); i += kThreads)
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
    for (int w = 0; w < kWarps; ++w) sums[i] += shared[w][i];
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
__device__ double overlap(const ConstRowsView& overlaps, const std::byte* coordinates, int64_t rank,
                          double* shared) {
  const int64_t lane = threadIdx.x % 32;
  double sum = 0;
  for (int64_t first = 0; first < rank; first += kChunk) {
    const int64_t k = first + 8 * lane;
    float c[8] = {}, e[8];
    if (k < rank) widen_eight(*reinterpret_cast<const uint4*>(coordinates + 2 * k), c);
#pragma unroll 8
    for (int64_t j = threadIdx.x / 32; j < rank; j += kWarps) {
      widen_eight(
          k < j ? read_once(overlaps.data + 2 * (j * overlaps.stride + k)) : make_uint4(0, 0, 0, 0),
          e);
      float dot = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) dot += e[i] * c[i];
      sum += dot * __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(coordinates)[j]);
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
__device__ void write_down(const GateRow& gate, const GateEntry& entry) {
  GateState state = *gate.state;
  *gate.entry = entry;
  if (entry.passed_by) {
    --state.to_skip;
  } else if (entry.fast) {
    state.slow_in_a_row = 0;
  } else if (++state.slow_in_a_row == gate.slow_tokens) {
    --state.slow_in_a_row;
    state.to_skip = gate.retry_tokens - 1;
  }
  *gate.state = state;
}

// By the first block, for all of them where the way is open.
__device__ Way decide(const GateRow& gate, Estimate found, Way way) {
  __shared__ double shared[kWarps];
  const bool open = way == kOpen;
  if (open) {
    found.rest += overlap(gate.overlaps, gate.step.coordinates, gate.vectors.n_out, shared);
    way = way_of(gate, found, gate.rounding * found.inside + kRoundOff * found.all);
    if (way == kOpen) {
      found.rest = explicit_rest(gate, shared);
      way = missed_share(found.all, found.rest) <= gate.epsilon ? kFast : kSlow;
    }
  }
  if (threadIdx.x == 0) {
    atomicExch(gate.step.way, static_cast<int32_t>(way));
    write_down(gate, {.all = found.all,
                      .rest = found.rest,
                      .fast = way == kFast,
                      .passed_by = false,
                      .settled = open});
  }
  return way;
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
__global__ void __launch_bounds__(kThreads, 1) gated_row(GateRow gate) {
  let_next_begin();
  // Neighbours in different blocks: an image is small, and all multiprocessors shall read some.
  const int64_t warp = int64_t{threadIdx.x / 32} * gridDim.x + blockIdx.x;
  const int64_t n_warps = int64_t{gridDim.x} * kWarps;
  const bool is_first = blockIdx.x == 0;
  Directions v;
  uint4 piece[kPieceLoads];
  read_directions(gate.vectors, blockIdx.x, 0, v);
  read_piece<kImageRows>(gate.image, kImageRows * warp, 0, piece);
  wait_for_earlier();
  uint4 x[kChunks];
  read_x(gate, 0, x);
  const uint32_t count = threadIdx.x == 0 ? count_when_all_are_there(gate.step) : 0;
  const bool passes_by = gate.state->to_skip > 0;
  if (!passes_by) project(gate, v, x);
  if (is_first && threadIdx.x == 0) *gate.step.way = kOpen;
  arrive(gate.step);
  Way way = kSlow;
  // The state is changed when every block has seen it.
  if (!passes_by || is_first) wait_for_all(gate.step, count);
  if (!passes_by) {
    const Estimate found = estimate(gate);
    way = first_way(gate, found);
    if (is_first)
      way = decide(gate, found, way);
    else if (way == kOpen)
      way = hear_way(gate);
  } else if (is_first && threadIdx.x == 0) {
    write_down(gate, {.all = 0, .rest = 0, .fast = false, .passed_by = true, .settled = true});
  }
  if (way == kFast) {
    multiply_rows<kImageRows>(gate.image, gate.step.coordinates, gate.output, warp, n_warps, piece);
    return;
  }
  read_piece<kDenseRows>(gate.dense, kDenseRows * warp, 0, piece);
  multiply_rows<kDenseRows>(gate.dense, gate.x, gate.output, warp, n_warps, piece);
}

// A block to an entry.
__global__ void __launch_bounds__(kThreads)
    settle(const GateEntry* entries, ConstRowsView coordinates, ConstRowsView overlaps,
           int64_t rank, RowVerdict* verdicts) {
  __shared__ double shared[kWarps];
  GateEntry entry = entries[blockIdx.x];
  if (!entry.settled)
    entry.rest +=
        overlap(overlaps, coordinates.data + 2 * blockIdx.x * coordinates.stride, rank, shared);
  if (threadIdx.x == 0)
    verdicts[blockIdx.x] = {
        .residual = entry.passed_by ? -1.0f : missed_share(entry.all, entry.rest),
        .kept = entry.fast ? 1 : 0};
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
  __shared__ double shared[kWarps];
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

void split_deviation(Context& context, Tensor gram, float* diagonal, Tensor overlaps) {
  split_gram<<<static_cast<unsigned>(gram.rows()), kThreads, 0, context.stream()>>>(
      view_of(gram), gram.rows(), diagonal, view_of(overlaps));
  check_launch("split_gram");
}

void sum_squares(Context& context, ConstTensor x, double* sum) {
  squares_of<<<1, kThreads, 0, context.stream()>>>(view_of(x), x.rows(), x.row_elements(), sum);
  check_launch("squares_of");
}

int64_t gate_blocks(const Context& context) { return context.multiprocessors(); }

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
                     .entry = args.entry,
                     .step = args.step,
                     .image = weights_of(args.image),
                     .dense = weights_of(args.dense),
                     .output = {.bias = args.bias,
                                .activation = args.activation,
                                .accumulate = args.accumulate,
                                .out = view_of(args.out)}};
  const auto kernel = gate.image.depth <= kPieceDepth<8>   ? gated_row<8>
                      : gate.image.depth <= kPieceDepth<4> ? gated_row<4>
                                                           : gated_row<2>;
  launch_early(context, "gated_row", kernel, dim3(static_cast<unsigned>(gate_blocks(context))),
               kThreads, gate);
}

void settle_residuals(Context& context, const SettleArgs& args) {
  settle<<<static_cast<unsigned>(args.coordinates.rows()), kThreads, 0, context.stream()>>>(
      args.entries, view_of(args.coordinates), view_of(args.overlaps), args.overlaps.rows(),
      args.verdicts);
  check_launch("settle");
}

}  // namespace sluice::cuda
