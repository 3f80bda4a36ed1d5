// Blocks that the queries of a block choose together, by a threshold on their mass: pooled, oracle.

#include "backend/cuda/attention/baseline/tile.cuh"
#include "backend/cuda/primitives/warp.cuh"

namespace sluice::impl::cuda::baseline {
namespace {

constexpr int kPages = kBlock / kPage;  // of a block

// The queries of one head that choose together: those of a block that this pass has.
struct Group {
  int64_t head, block;  // their own block
  int64_t row, end;     // of the pass

  __device__ explicit Group(const PassView& pass)
      : head(blockIdx.y), block(pass.first / kBlock + blockIdx.x) {
    row = max(int64_t{0}, block * kBlock - pass.first);
    end = min(pass.n_tokens, (block + 1) * kBlock - pass.first);
  }
};

int64_t n_groups(const PassView& pass) {
  return (pass.end() - 1) / kBlock - pass.first / kBlock + 1;
}

// The fewest blocks with a share `keep` of the mass, the first and the group's own among them; of
// equal blocks the earlier. One warp. mass: (block + 1), in shared memory; what is taken becomes
// negative.
__device__ void take_fewest(const Group& group, double keep, double* mass) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t n = group.block + 1;
  double sum = 0;
  for (int64_t i = lane; i < n; i += 32) {
    if (isnan(mass[i])) mass[i] = 0;
    sum += mass[i];
  }
  __syncwarp();
  const double wanted = keep * warp_sum(sum);
  const bool all = keep >= 1 || n <= 2;
  double taken = mass[0] + mass[n - 1];
  __syncwarp();
  for (int64_t i = lane; i < n; i += 32)
    if (all || i == 0 || i == n - 1) mass[i] = -1;
  __syncwarp();
  while (!all && taken < wanted) {
    double most = -1;
    int64_t at = n;
    for (int64_t i = lane; i < n; i += 32)
      if (mass[i] > most) {
        most = mass[i];
        at = i;
      }
    for (int step = 16; step > 0; step /= 2) {
      const double other = __shfl_xor_sync(kAllLanes, most, step);
      const int64_t other_at = __shfl_xor_sync(kAllLanes, at, step);
      if (other > most || (other == most && other_at < at)) {
        most = other;
        at = other_at;
      }
    }
    if (most < 0) break;
    taken += most;
    if (lane == 0) mass[at] = -1;
    __syncwarp();
  }
}

// All threads: marks the pages of blocks whose mass is negative, for every query of the group.
__device__ void mark_taken(const PassView& pass, const Group& group, const double* mass) {
  const int64_t n = (group.end - group.row) * pass.n_words;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const int64_t row = group.row + i / pass.n_words, word = i % pass.n_words;
    uint32_t bits = 0;
    for (int page = 0; page < 32; ++page) {
      const int64_t block = (word * 32 + page) / kPages;
      if (block <= group.block && mass[block] < 0) bits |= 1u << page;
    }
    pass.reads[(row * pass.n_heads + group.head) * pass.n_words + word] = bits;
  }
}

// A block for each block of keys, from the first that the pass adds to on, and key/value head.
__global__ void mean_block(const __grid_constant__ PassView pass, const BlockMeans means) {
  const int64_t block = pass.first / kBlock + blockIdx.x, kv_head = blockIdx.y;
  const int64_t begin = block * kBlock, end = min(begin + kBlock, pass.end());
  for (int64_t d = threadIdx.x; d < pass.head_dim; d += blockDim.x) {
    float sum = 0;
    for (int64_t t = begin; t < end; ++t) sum += cached(pass, pass.keys, kv_head, t, d);
    means.keys[(kv_head * means.n_blocks + block) * pass.head_dim + d] =
        sum / static_cast<float>(end - begin);
  }
}

// A block for each group. Shared memory: mass (n_blocks) f64, then the mean query (head_dim).
__global__ void choose_by_means(const __grid_constant__ PassView pass, const BlockMeans means,
                                int64_t n_blocks, double keep) {
  extern __shared__ double mass[];
  const Group group(pass);
  auto* const query = reinterpret_cast<float*>(mass + n_blocks);
  for (int64_t d = threadIdx.x; d < pass.head_dim; d += blockDim.x) {
    float sum = 0;
    for (int64_t row = group.row; row < group.end; ++row)
      sum += query_element(pass, row, group.head, d);
    query[d] = sum / static_cast<float>(group.end - group.row);
  }
  __syncthreads();
  for (int64_t block = threadIdx.x; block <= group.block; block += blockDim.x) {
    const float* mean =
        means.keys + (pass.kv_head(group.head) * means.n_blocks + block) * pass.head_dim;
    float score = 0;
    for (int64_t d = 0; d < pass.head_dim; ++d) score += query[d] * mean[d];
    mass[block] = double{score} * pass.scale;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    double largest = -INFINITY;
    for (int64_t i = threadIdx.x; i <= group.block; i += 32) largest = fmax(largest, mass[i]);
    largest = warp_max(largest);
    for (int64_t i = threadIdx.x; i <= group.block; i += 32) mass[i] = exp(mass[i] - largest);
    __syncwarp();
    take_fewest(group, keep, mass);
  }
  __syncthreads();
  mark_taken(pass, group, mass);
}

// A block for each group. Shared memory: mass (n_blocks) f64, a QueryTile's, then of each query the
// largest score and the sum of weights.
__global__ void choose_by_mass(const __grid_constant__ PassView pass, int64_t n_blocks,
                               double keep) {
  extern __shared__ double mass[];
  const Group group(pass);
  auto* const floats = reinterpret_cast<float*>(mass + n_blocks);
  float* const largest = floats + QueryTile::n_floats(pass.head_dim);
  float* const total = largest + kTile;
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t i = lane; i <= group.block; i += kThreads) mass[i] = 0;
  for (int64_t row = group.row; row < group.end; row += kTile) {
    const QueryTile tile(pass, group.head, row, group.end, floats);
    const int64_t n_pages = tile.position(tile.n - 1) / kPage + 1;
    const auto all = [](int, int64_t) { return true; };
    if (lane < kTile) {
      largest[lane] = -INFINITY;
      total[lane] = 0;
    }
    for (int64_t page = 0; page < n_pages; ++page) {
      tile.score_page(page, all);
      if (lane >= tile.n) continue;
      float now = largest[lane];
      for (int i = 0; i < kPage; ++i) now = fmaxf(now, tile.scores[lane * kPage + i]);
      if (now == -INFINITY) continue;
      total[lane] *= expf(largest[lane] - now);
      for (int i = 0; i < kPage; ++i) total[lane] += expf(tile.scores[lane * kPage + i] - now);
      largest[lane] = now;
    }
    for (int64_t page = 0; page < n_pages; ++page) {
      tile.score_page(page, all);
      if (lane >= 32) continue;
      double sum = 0;
      if (lane < tile.n)
        for (int i = 0; i < kPage; ++i)
          sum += expf(tile.scores[lane * kPage + i] - largest[lane]) / total[lane];
      sum = warp_sum(sum);
      if (lane == 0) mass[page / kPages] += sum;
    }
    __syncthreads();
  }
  __syncthreads();
  if (lane < 32) take_fewest(group, keep, mass);
  __syncthreads();
  mark_taken(pass, group, mass);
}

dim3 grid_of(const PassView& pass) {
  return {static_cast<unsigned>(n_groups(pass)), static_cast<unsigned>(pass.n_heads)};
}

}  // namespace

void mean_blocks(const Context& context, const PassView& pass, const BlockMeans& means) {
  const dim3 grid(static_cast<unsigned>(n_groups(pass)), static_cast<unsigned>(pass.n_kv_heads));
  mean_block<<<grid, 64, 0, context.stream()>>>(pass, means);
  check_launch("means of blocks");
}

void choose_pooled(const Context& context, const PassView& pass, const BlockMeans& means,
                   double keep) {
  const int64_t n_blocks = ceil_div(pass.end(), kBlock);
  const int64_t bytes = n_blocks * int64_t{sizeof(double)} + pass.head_dim * int64_t{sizeof(float)};
  check(cudaFuncSetAttribute(choose_by_means, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of a baseline");
  choose_by_means<<<grid_of(pass), 128, static_cast<size_t>(bytes), context.stream()>>>(
      pass, means, n_blocks, keep);
  check_launch("blocks by means");
}

void choose_oracle(const Context& context, const PassView& pass, double keep) {
  const int64_t n_blocks = ceil_div(pass.end(), kBlock);
  const int64_t bytes = n_blocks * int64_t{sizeof(double)} +
                        (QueryTile::n_floats(pass.head_dim) + 2 * kTile) * int64_t{sizeof(float)};
  check(cudaFuncSetAttribute(choose_by_mass, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of a baseline");
  choose_by_mass<<<grid_of(pass), kThreads, static_cast<size_t>(bytes), context.stream()>>>(
      pass, n_blocks, keep);
  check_launch("blocks by mass");
}

}  // namespace sluice::impl::cuda::baseline
