// RMS norm of heads of queries and keys: one warp to a head.

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::elementwise {
namespace {

constexpr int kWarps = 4;

struct HeadRows {
  float epsilon;
  const float* query_weight;
  const float* key_weight;
  RowsView x;
  int64_t n_rows;
  int32_t n_queries, n_heads, head_dim;
};

template <int kN>
__global__ void __launch_bounds__(32 * kWarps) norm_head_rows(HeadRows args) {
  launch_dependents();
  const int64_t which = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (which >= args.n_rows * args.n_heads) return;
  const int64_t row = which / args.n_heads;
  const auto head = static_cast<int32_t>(which - row * args.n_heads);
  const float* weights = head < args.n_queries ? args.query_weight : args.key_weight;
  const int64_t begin = int64_t{head} * args.head_dim;
  const int first = static_cast<int>(threadIdx.x) % 32 * kN;
  wait_on_dependency();
  float x[kN], weight[kN], sum = 0;
  for (int column = first; column < args.head_dim; column += 32 * kN) {
    load<kN>(args.x, row, begin + column, x);
    for (const float value : x) sum += value * value;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const float inverse = 1 / sqrtf(sum / static_cast<float>(args.head_dim) + args.epsilon);
  for (int column = first; column < args.head_dim; column += 32 * kN) {
    load<kN>(args.x, row, begin + column, x);
    load<kN>(vector_view(weights), 0, column, weight);
    for (int i = 0; i < kN; ++i) x[i] = x[i] * inverse * weight[i];
    store<kN>(args.x, row, begin + column, x);
  }
}

}  // namespace

void norm_heads(Context& context, const HeadNormArgs& args) {
  if (args.x.rows() == 0) return;
  const HeadRows rows{.epsilon = args.epsilon,
                      .query_weight = args.query_weight.data<float>(),
                      .key_weight = args.key_weight.data<float>(),
                      .x = view_of(args.x),
                      .n_rows = args.x.rows(),
                      .n_queries = static_cast<int32_t>(args.n_queries),
                      .n_heads = static_cast<int32_t>(args.x.shape()[1]),
                      .head_dim = static_cast<int32_t>(args.x.shape()[2])};
  const bool eights = by_eights(args.x) && rows.head_dim % 8 == 0 &&
                      reinterpret_cast<uintptr_t>(rows.query_weight) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(rows.key_weight) % 16 == 0;
  launch_programmatic(context, "norm_head_rows", eights ? norm_head_rows<8> : norm_head_rows<1>,
                      dim3(static_cast<unsigned>(ceil_div(rows.n_rows * rows.n_heads, kWarps))),
                      32 * kWarps, rows);
}

}  // namespace sluice::impl::cuda::elementwise
