// Members of clusters, counted at the first query of every tile, and from there on at each.

#include "backend/cuda/attention/copy/kernels.h"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::copy {
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
  constexpr int kUnroll = 16;
  __shared__ int32_t counts[kTiles][kClusters], borders[kTiles];
  launch_dependents();
  wait_on_dependency();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto first_cluster = static_cast<int32_t>(blockIdx.x) * kClusters;
  const int64_t my_cluster = int64_t{first_cluster} + thread;
  const bool adds = thread < kClusters && my_cluster < args.width;
  int32_t sum = adds && my_cluster < args.n_known ? args.before[my_cluster] : 0, begin = 0;
  for (int64_t first = 0; first <= args.n_tiles; first += kTiles) {
    const auto n = static_cast<int>(min(int64_t{kTiles}, args.n_tiles + 1 - first));
    for (int i = thread; i < n; i += kCountThreads)
      borders[i] = static_cast<int32_t>(
          first + i < args.n_tiles ? args.borders[first + i].position - args.first : args.n);
    for (int i = thread; i < n * kClusters; i += kCountThreads)
      counts[i / kClusters][i % kClusters] = 0;
    __syncthreads();
    const int32_t end = borders[n - 1];
    for (int32_t from = begin + thread; from - thread < end; from += kUnroll * kCountThreads) {
      int32_t cluster[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int32_t token = from + i * kCountThreads;
        cluster[i] = token < end ? args.cluster[token] - first_cluster : -1;
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        if (cluster[i] >= 0 && cluster[i] < kClusters)
          atomicAdd(&counts[tile_of(borders, n, from + i * kCountThreads)][cluster[i]], 1);
    }
    __syncthreads();
    for (int i = 0; adds && i < n; ++i) {
      sum += counts[i][thread];
      if (first + i < args.n_tiles)
        args.bias[(first + i) * args.width + my_cluster] =
            args.scale > 0 ? logf(static_cast<float>(sum)) / args.scale
                           : static_cast<float>(sum) - kByteBase;
    }
    begin = end;
    __syncthreads();  // all have been read
  }
  if (adds && my_cluster < args.n_clusters) args.before[my_cluster] = sum;
}

constexpr int kColumns = 128;  // clusters of a block that counts at every query
constexpr int kStrips = kRepsTileRows / 16;
constexpr int kSinceThreads = 32 * kStrips;

// Of the rows of a tile the first that stands at a token or behind it; one does.
__device__ int row_at(const int32_t* positions, int n, int32_t token) {
  int begin = 0, end = n - 1;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (positions[middle] < token)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

// A tile of queries (blockIdx.y) and kColumns clusters: members are noted at the first row that
// counts them and added up along the rows, four clusters to a word.
__global__ void __launch_bounds__(kSinceThreads)
    count_since(const __grid_constant__ SinceArgs args) {
  constexpr int kWords = kColumns / 4, kUnroll = 4;
  static_assert(kWords == 32);
  __shared__ uint32_t words[kRepsTileRows][kWords + 1];
  __shared__ uint32_t before[kStrips][kWords];  // the strip
  __shared__ int32_t positions[kRepsTileRows];
  launch_dependents();
  wait_on_dependency();
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % 32, strip = thread / 32;
  const int64_t first_row = (args.first_tile + blockIdx.y) * kRepsTileRows;
  const auto n = static_cast<int>(min(int64_t{kRepsTileRows}, args.n_rows - first_row));
  const int32_t first_cluster = static_cast<int32_t>(blockIdx.x) * kColumns;
  if (first_cluster >= args.n_before + first_row + n) return;  // no row sees them
  if (thread < n) positions[thread] = args.positions[first_row + thread];
  for (int row = strip; row < kRepsTileRows; row += kStrips) words[row][lane] = 0;
  __syncthreads();
  const int32_t last = positions[n - 1];
  for (int32_t from = positions[0] + thread; from - thread <= last;
       from += kUnroll * kSinceThreads) {
    int32_t column[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int32_t token = from + i * kSinceThreads;
      column[i] = token <= last ? args.cluster[token] - first_cluster : -1;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      if (column[i] >= 0 && column[i] < kColumns)
        atomicAdd(&words[row_at(positions, n, from + i * kSinceThreads)][column[i] / 4],
                  1u << column[i] % 4 * 8);
  }
  __syncthreads();
  uint32_t sum = 0;
#pragma unroll
  for (int row = strip * 16; row < strip * 16 + 16; ++row) {
    sum += words[row][lane];
    words[row][lane] = sum;
  }
  __syncthreads();
  uint32_t earlier = 0;
  for (int other = 0; other < strip; ++other) earlier += words[other * 16 + 15][lane];
  before[strip][lane] = earlier;
  __syncwarp();
  const int g = lane / 4, t = lane % 4;
  uint4* to = args.since + (blockIdx.y * (args.width / 32) + first_cluster / 32) * kSinceThreads;
#pragma unroll
  for (int part = 0; part < kColumns / 32; ++part) {
    uint32_t four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int word = (4 * part + i) * 2 + t / 2;
      const uint32_t low = words[strip * 16 + g][word] + before[strip][word];
      const uint32_t high = words[strip * 16 + g + 8][word] + before[strip][word];
      four[i] = __byte_perm(low, high, t % 2 == 0 ? 0x5410 : 0x7632);
    }
    to[part * kSinceThreads + thread] = {four[0], four[1], four[2], four[3]};
  }
}

}  // namespace

void count_members(Context& context, const CountArgs& args) {
  SLUICE_CHECK(args.n <= INT32_MAX / 2 && args.width <= INT32_MAX - kClusters);
  launch_programmatic(context, "count", count,
                      static_cast<unsigned>(ceil_div(args.width, kClusters)), kCountThreads, args);
}

void count_members_since(Context& context, const SinceArgs& args) {
  SLUICE_CHECK(args.width % kColumns == 0 && args.width <= INT32_MAX && args.n_tiles < 65536);
  const dim3 grid(static_cast<unsigned>(args.width / kColumns),
                  static_cast<unsigned>(args.n_tiles));
  launch_programmatic(context, "count_since", count_since, grid, kSinceThreads, args);
}

}  // namespace sluice::impl::cuda::copy
