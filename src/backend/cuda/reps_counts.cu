// Members of clusters, counted at the first query of every tile.

#include "backend/cuda/early.cuh"
#include "backend/cuda/reps_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kCountThreads = 512;
constexpr int kClusters = 64;  // of a block
constexpr int kTiles = 128;    // at a time

// Of `borders`, ascending, the first above a token.
__device__ int tile_of(const int32_t* borders, int n, int32_t token) {
  int begin = 0, end = n - 1;  // the last is above all tokens that are asked for
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (borders[middle] > token)
      end = middle;
    else
      begin = middle + 1;
  }
  return begin;
}

// Every block looks at all tokens once, those between two borders after those before. Behind the
// last tile is another one, which counts all that is left.
__global__ void __launch_bounds__(kCountThreads) count(const __grid_constant__ CountArgs args) {
  constexpr int kTurn = 8;
  __shared__ int32_t counts[kTiles][kClusters], borders[kTiles];
  let_next_begin();
  wait_for_earlier();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto first_cluster = static_cast<int32_t>(blockIdx.x) * kClusters;
  const int64_t my_cluster = int64_t{first_cluster} + thread;
  const bool adds = thread < kClusters && my_cluster < args.n_clusters;
  int32_t sum = adds ? args.before[my_cluster] : 0, begin = 0;
  for (int64_t first = 0; first <= args.n_tiles; first += kTiles) {
    const auto n = static_cast<int>(min(int64_t{kTiles}, args.n_tiles + 1 - first));
    for (int i = thread; i < n; i += kCountThreads)
      borders[i] = static_cast<int32_t>(
          first + i < args.n_tiles ? args.borders[first + i].position - args.first : args.n);
    for (int i = thread; i < n * kClusters; i += kCountThreads)
      counts[i / kClusters][i % kClusters] = 0;
    __syncthreads();
    const int32_t end = borders[n - 1];
    for (int32_t from = begin + thread; from - thread < end; from += kTurn * kCountThreads) {
      int32_t cluster[kTurn];
#pragma unroll
      for (int i = 0; i < kTurn; ++i) {
        const int32_t token = from + i * kCountThreads;
        cluster[i] = token < end ? args.cluster[token] - first_cluster : -1;
      }
#pragma unroll
      for (int i = 0; i < kTurn; ++i)
        if (cluster[i] >= 0 && cluster[i] < kClusters)
          atomicAdd(&counts[tile_of(borders, n, from + i * kCountThreads)][cluster[i]], 1);
    }
    __syncthreads();
    for (int i = 0; adds && i < n; ++i) {
      sum += counts[i][thread];
      if (first + i < args.n_tiles)
        args.bias[(first + i) * args.n_clusters + my_cluster] =
            logf(static_cast<float>(sum)) / args.scale;
    }
    begin = end;
    __syncthreads();  // all have been read
  }
  if (adds) args.before[my_cluster] = sum;
}

}  // namespace

void count_members(Context& context, const CountArgs& args) {
  SLUICE_CHECK(args.n <= INT32_MAX / 2 && args.n_clusters <= INT32_MAX - kClusters);
  launch_early(context, "count", count, static_cast<unsigned>(ceil_div(args.n_clusters, kClusters)),
               kCountThreads, args);
}

}  // namespace sluice::cuda
