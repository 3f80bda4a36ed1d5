// Members of clusters, counted at the first query of every tile.

#include "backend/cuda/reps_kernels.h"

namespace sluice::cuda {
namespace {

// Counts are summed where their logs go.
__device__ int32_t* counts_of(const CountArgs& args, int64_t tile) {
  return reinterpret_cast<int32_t*>(args.bias) + tile * args.n_clusters;
}

__global__ void count_tokens(CountArgs args) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < args.n) atomicAdd(counts_of(args, args.tile_of[i]) + args.cluster[i], 1);
}

__global__ void sum_counts(CountArgs args) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= args.n_clusters) return;
  constexpr int kTurn = 16;
  int32_t sum = args.before[c];
  for (int64_t first = 0; first <= args.n_tiles; first += kTurn) {
    int32_t counts[kTurn];
#pragma unroll
    for (int i = 0; i < kTurn; ++i)
      counts[i] = first + i <= args.n_tiles ? counts_of(args, first + i)[c] : 0;
#pragma unroll
    for (int i = 0; i < kTurn; ++i) {
      if (first + i > args.n_tiles) break;
      sum += counts[i];
      args.bias[(first + i) * args.n_clusters + c] = logf(static_cast<float>(sum)) / args.scale;
    }
  }
  args.before[c] = sum;
}

}  // namespace

void count_members(Context& context, const CountArgs& args) {
  const auto bytes = static_cast<size_t>((args.n_tiles + 1) * args.n_clusters) * sizeof(int32_t);
  check(cudaMemsetAsync(args.bias, 0, bytes, context.stream()), "counts");
  count_tokens<<<static_cast<unsigned>(ceil_div(args.n, 256)), 256, 0, context.stream()>>>(args);
  check_launch("count_tokens");
  sum_counts<<<static_cast<unsigned>(ceil_div(args.n_clusters, 128)), 128, 0, context.stream()>>>(
      args);
  check_launch("sum_counts");
}

}  // namespace sluice::cuda
