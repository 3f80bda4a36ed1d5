// Layer norm and RMS norm: one block to a row, whose later readings come from the first-level
// cache.

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

// Every thread reads its own elements only, so out may be x.
template <int kN>
__global__ void norm_rows(NormRows args) {
  __shared__ float sums[kThreads / 32];
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
    for (int i = 0; i < kN; ++i) {
      x[i] = (x[i] - mean) * inverse;
      if (args.weight != nullptr) x[i] *= args.weight[column + i];
      if (args.bias != nullptr) x[i] += args.bias[column + i];
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
  const auto kernel = by_eights(args.x) && by_eights(args.out) ? norm_rows<8> : norm_rows<1>;
  kernel<<<static_cast<unsigned>(args.x.rows()), kThreads, 0, context.stream()>>>(rows);
  check_launch("norm_rows");
}

}  // namespace sluice::cuda
