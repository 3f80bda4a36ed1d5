// Layer norm and RMS norm: one block to a row, whose later readings come from the first-level
// cache.

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

// Every thread reads its own elements only, so out may be x.
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
  const auto kernel = eights ? norm_rows<8> : norm_rows<1>;
  launch_early(context, "norm_rows", kernel, dim3(static_cast<unsigned>(args.x.rows())), kThreads,
               rows);
}

}  // namespace sluice::cuda
