// Layer norm and RMS norm: one block to a row. What fits the registers is read once, its weights
// before the kernels ahead are done; of longer rows later readings come from the first-level cache.

#include "backend/cuda/early.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/elements.h"

namespace sluice::cuda {
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
};

// Every thread reads its own elements only, so out may be x. kHeld groups of kN are as many as a
// thread has.
template <int kN, int kHeld>
__global__ void __launch_bounds__(kThreads) norm_held(NormRows args) {
  __shared__ float sums[kThreads / 32];
  let_next_begin();
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * kN, step = int64_t{kThreads} * kN;
  const auto d = static_cast<float>(args.d);
  float x[kHeld][kN], weight[kHeld][kN], bias[kHeld][kN];
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int held = 0; held < kHeld; ++held)
      if (first + held * step < args.d) body(held, first + held * step);
  };
  each([&](int held, int64_t column) {
    if (args.weight != nullptr) load<kN>(vector_view(args.weight), 0, column, weight[held]);
    if (args.bias != nullptr) load<kN>(vector_view(args.bias), 0, column, bias[held]);
  });
  wait_for_earlier();
  each([&](int held, int64_t column) { load<kN>(args.x, row, column, x[held]); });
  float sum = 0, mean = 0;
  if (args.centred) {
    each([&](int held, int64_t) {
      for (const float value : x[held]) sum += value;
    });
    mean = block_sum(sum, sums) / d;
    sum = 0;
  }
  each([&](int held, int64_t) {
    for (const float value : x[held]) sum += (value - mean) * (value - mean);
  });
  const float inverse = 1 / sqrtf(block_sum(sum, sums) / d + args.epsilon);
  each([&](int held, int64_t column) {
    for (int i = 0; i < kN; ++i) {
      x[held][i] = (x[held][i] - mean) * inverse;
      if (args.weight != nullptr) x[held][i] *= weight[held][i];
      if (args.bias != nullptr) x[held][i] += bias[held][i];
    }
    store<kN>(args.out, row, column, x[held]);
  });
}

// The same of rows of any length.
template <int kN>
__global__ void norm_rows(NormRows args) {
  __shared__ float sums[kThreads / 32];
  let_next_begin();
  wait_for_earlier();
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * kN, step = int64_t{kThreads} * kN;
  const auto d = static_cast<float>(args.d);
  float x[kN], sum = 0, mean = 0;
  if (args.centred) {
    for (int64_t column = first; column < args.d; column += step) {
      load<kN>(args.x, row, column, x);
      for (int i = 0; i < kN; ++i) sum += x[i];
    }
    mean = block_sum(sum, sums) / d;
    sum = 0;
  }
  for (int64_t column = first; column < args.d; column += step) {
    load<kN>(args.x, row, column, x);
    for (int i = 0; i < kN; ++i) sum += (x[i] - mean) * (x[i] - mean);
  }
  const float inverse = 1 / sqrtf(block_sum(sum, sums) / d + args.epsilon);
  for (int64_t column = first; column < args.d; column += step) {
    load<kN>(args.x, row, column, x);
    for (int i = 0; i < kN; ++i) x[i] = (x[i] - mean) * inverse;
    float beside[kN];
    if (args.weight != nullptr) {
      load<kN>(vector_view(args.weight), 0, column, beside);
      for (int i = 0; i < kN; ++i) x[i] *= beside[i];
    }
    if (args.bias != nullptr) {
      load<kN>(vector_view(args.bias), 0, column, beside);
      for (int i = 0; i < kN; ++i) x[i] += beside[i];
    }
    store<kN>(args.out, row, column, x);
  }
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
                      .d = args.x.row_elements()};
  const bool eights = by_eights(args.x) && by_eights(args.out) &&
                      reinterpret_cast<uintptr_t>(rows.weight) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(rows.bias) % 16 == 0;
  constexpr int64_t kOnce = 8 * kThreads;  // elements that the threads hold together
  const auto kernel = !eights               ? norm_rows<1>
                      : rows.d <= kOnce     ? norm_held<8, 1>
                      : rows.d <= 2 * kOnce ? norm_held<8, 2>
                                            : norm_rows<8>;
  launch_early(context, "norm_rows", kernel, dim3(static_cast<unsigned>(args.x.rows())), kThreads,
               rows);
}

}  // namespace sluice::cuda
