// Layer norm and RMS norm: one block to a row. What fits the registers is read once, its weights
// before the kernels ahead are done; of longer rows later readings come from the first-level cache.
//
// On request it writes sums of squares of what it reads and of what it stores, so that selection
// need not read the rows for their norms. They are float64, of exact squares: two or three integer
// instructions and one of float64 an element.

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/primitives/squares.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::elementwise {
namespace {

constexpr int kThreads = 256;

struct NormRows {
  bool centred;
  float epsilon;
  ConstRowsView x;
  const float* weight;  // or null
  const float* bias;    // or null
  RowsView out;
  int64_t d;
  double* squares;  // (rows, 2) of x and of out as stored, with kSquares
};

// Squares of what store() makes of them.
template <int kN>
__device__ double stored_squares(const RowsView& out, const float (&x)[kN]) {
  if (!out.bf16) return squares_of(x);
  float rounded[kN];
  if constexpr (kN == 1)
    rounded[0] = __bfloat162float(__float2bfloat16_rn(x[0]));
  else
    widen_eight(narrowed_eight(x), rounded);
  return squares_of(rounded);
}

// Both sums over the block, by its lanes' halves.
__device__ void put_squares(double of_x, double of_out, double* to) {
  __shared__ double sums[2][kThreads / 32];
  const int half = static_cast<int>(threadIdx.x) / 16 % 2;
  double sum = half == 0 ? of_x : of_out;
  sum += __shfl_xor_sync(0xffffffffu, half == 0 ? of_out : of_x, 16);
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 16 == 0) sums[half][threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 2) return;
  sum = 0;
  for (const double part : sums[threadIdx.x]) sum += part;
  to[threadIdx.x] = sum;
}

// Every thread reads its own elements only, so out may be x. kHeld groups of kN are as many as a
// thread has. Weights come before the kernels ahead are done, or, with sums of squares, which many
// rows have, late: there registers for more rows at a time are worth more.
template <int kN, int kHeld, bool kSquares>
__global__ void __launch_bounds__(kThreads, kSquares ? 5 : 1) norm_held(NormRows args) {
  __shared__ float sums[kThreads / 32];
  launch_dependents();
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * kN, step = int64_t{kThreads} * kN;
  const auto d = static_cast<float>(args.d);
  float x[kHeld][kN], weight[kHeld][kN], bias[kHeld][kN];
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int held = 0; held < kHeld; ++held)
      if (first + held * step < args.d) body(held, first + held * step);
  };
  const auto read_weights = [&](int held, int64_t column) {
    if (args.weight != nullptr) load<kN>(vector_view(args.weight), 0, column, weight[held]);
    if (args.bias != nullptr) load<kN>(vector_view(args.bias), 0, column, bias[held]);
  };
  if constexpr (!kSquares) each(read_weights);
  wait_on_dependency();
  each([&](int held, int64_t column) { load<kN>(args.x, row, column, x[held]); });
  float sum = 0, mean = 0;
  if (args.centred) {
    each([&](int held, int64_t) {
      for (const float value : x[held]) sum += value;
    });
    mean = block_sum<kThreads>(sum, sums) / d;
    sum = 0;
  }
  double of_x = 0, of_out = 0;
  each([&](int held, int64_t) {
    for (const float value : x[held]) sum += (value - mean) * (value - mean);
    if constexpr (kSquares) of_x += squares_of(x[held]);
  });
  const float inverse = 1 / sqrtf(block_sum<kThreads>(sum, sums) / d + args.epsilon);
  each([&](int held, int64_t column) {
    if constexpr (kSquares) read_weights(held, column);
    for (int i = 0; i < kN; ++i) {
      x[held][i] = (x[held][i] - mean) * inverse;
      if (args.weight != nullptr) x[held][i] *= weight[held][i];
      if (args.bias != nullptr) x[held][i] += bias[held][i];
    }
    store<kN>(args.out, row, column, x[held]);
    if constexpr (kSquares) of_out += stored_squares(args.out, x[held]);
  });
  if constexpr (kSquares) put_squares(of_x, of_out, args.squares + 2 * row);
}

// The same of rows of any length.
template <int kN, bool kSquares>
__global__ void norm_rows(NormRows args) {
  __shared__ float sums[kThreads / 32];
  launch_dependents();
  wait_on_dependency();
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * kN, step = int64_t{kThreads} * kN;
  const auto d = static_cast<float>(args.d);
  float x[kN], sum = 0, mean = 0;
  if (args.centred) {
    for (int64_t column = first; column < args.d; column += step) {
      load<kN>(args.x, row, column, x);
      for (int i = 0; i < kN; ++i) sum += x[i];
    }
    mean = block_sum<kThreads>(sum, sums) / d;
    sum = 0;
  }
  for (int64_t column = first; column < args.d; column += step) {
    load<kN>(args.x, row, column, x);
    for (int i = 0; i < kN; ++i) sum += (x[i] - mean) * (x[i] - mean);
  }
  const float inverse = 1 / sqrtf(block_sum<kThreads>(sum, sums) / d + args.epsilon);
  double of_x = 0, of_out = 0;
  for (int64_t column = first; column < args.d; column += step) {
    load<kN>(args.x, row, column, x);
    if constexpr (kSquares) of_x += squares_of(x);
    for (int i = 0; i < kN; ++i) x[i] = (x[i] - mean) * inverse;
    float parameter[kN];
    if (args.weight != nullptr) {
      load<kN>(vector_view(args.weight), 0, column, parameter);
      for (int i = 0; i < kN; ++i) x[i] *= parameter[i];
    }
    if (args.bias != nullptr) {
      load<kN>(vector_view(args.bias), 0, column, parameter);
      for (int i = 0; i < kN; ++i) x[i] += parameter[i];
    }
    store<kN>(args.out, row, column, x);
    if constexpr (kSquares) of_out += stored_squares(args.out, x);
  }
  if constexpr (kSquares) put_squares(of_x, of_out, args.squares + 2 * row);
}

template <bool kSquares>
void launch(Context& context, int64_t n_rows, bool eights, const NormRows& rows) {
  constexpr int64_t kOnce = 8 * kThreads;  // elements that the threads hold together
  const auto kernel = !eights               ? norm_rows<1, kSquares>
                      : rows.d <= kOnce     ? norm_held<8, 1, kSquares>
                      : rows.d <= 2 * kOnce ? norm_held<8, 2, kSquares>
                                            : norm_rows<8, kSquares>;
  launch_programmatic(context, "norm_rows", kernel, dim3(static_cast<unsigned>(n_rows)), kThreads,
                      rows);
}

}  // namespace

void norm(Context& context, const NormArgs& args) {
  if (args.x.rows() == 0) return;
  const NormRows rows{.centred = args.kind == NormKind::kLayer,
                      .epsilon = args.epsilon,
                      .x = view_of(args.x),
                      .weight = args.weight.defined() ? args.weight.data<float>() : nullptr,
                      .bias = args.bias.defined() ? args.bias.data<float>() : nullptr,
                      .out = view_of(args.out),
                      .d = args.x.row_elements(),
                      .squares = reinterpret_cast<double*>(args.squares.bytes())};
  const bool eights = by_eights(args.x) && by_eights(args.out) &&
                      reinterpret_cast<uintptr_t>(rows.weight) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(rows.bias) % 16 == 0;
  (args.squares.defined() ? launch<true> : launch<false>)(context, args.x.rows(), eights, rows);
}

}  // namespace sluice::impl::cuda::elementwise
