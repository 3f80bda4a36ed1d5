// E = V^T V - 1, what directions are short of orthonormal: its parts, and what the residuals that a
// gate wrote down lack of it.

#include "backend/cuda/subspace/decision.cuh"
#include "backend/cuda/subspace/kernels.h"

namespace sluice::impl::cuda::subspace {
namespace {

// A block to an entry.
__global__ void __launch_bounds__(kGateThreads)
    settle(const GateEntry* entries, ConstRowsView coordinates, ConstRowsView overlaps,
           int64_t rank, RowDecision* decisions) {
  __shared__ double shared[kGateWarps];
  GateEntry entry = entries[blockIdx.x];
  if (!entry.settled)
    entry.rest +=
        overlap(overlaps, coordinates.data + 2 * blockIdx.x * coordinates.stride, rank, shared);
  if (threadIdx.x == 0)
    decisions[blockIdx.x] = {
        .residual = entry.passed_by ? -1.0f : missed_share(entry.all, entry.rest),
        .kept = entry.fast ? 1 : 0};
}

// Leaves the off-diagonal part of E in `gram`.
__global__ void split_gram(RowsView gram, int64_t rank, float* diagonal, RowsView overlaps) {
  const int64_t j = blockIdx.x;
  for (int64_t k = threadIdx.x; k < rank; k += kGateThreads) {
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
  __shared__ double shared[kGateWarps];
  double own = 0;
  for (int64_t row = blockIdx.x; row < n_rows; row += gridDim.x)
    for (int64_t i = threadIdx.x; i < d; i += kGateThreads) {
      float value[1];
      load<1>(x, row, i, value);
      own += double{value[0]} * value[0];
    }
  own = block_sum(own, shared);
  if (threadIdx.x == 0) *sum = own;
}

}  // namespace

void split_deviation(Context& context, Tensor gram, float* diagonal, Tensor overlaps) {
  split_gram<<<static_cast<unsigned>(gram.rows()), kGateThreads, 0, context.stream()>>>(
      view_of(gram), gram.rows(), diagonal, view_of(overlaps));
  check_launch("split_gram");
}

void sum_squares(Context& context, ConstTensor x, double* sum) {
  squares_of<<<1, kGateThreads, 0, context.stream()>>>(view_of(x), x.rows(), x.row_elements(), sum);
  check_launch("squares_of");
}

void settle_residuals(Context& context, const ResidualsArgs& args) {
  if (args.coordinates.rows() == 0) return;
  settle<<<static_cast<unsigned>(args.coordinates.rows()), kGateThreads, 0, context.stream()>>>(
      args.entries, view_of(args.coordinates), view_of(args.overlaps), args.overlaps.rows(),
      args.decisions);
  check_launch("settle");
}

}  // namespace sluice::impl::cuda::subspace
