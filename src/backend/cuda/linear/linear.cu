// The product of one row with a matrix, and what larger products leave to do on their sums.

#include <algorithm>

#include "backend/cuda/linear/kernels.h"
#include "backend/cuda/linear/row.cuh"
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

void multiply_one_row(Context& context, const OneRowArgs& args, const int32_t* unwanted) {
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
