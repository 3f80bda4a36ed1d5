// Members of clusters, counted; and attention among representatives with one query and one head to
// a warp, in f32 throughout.

#include "backend/cuda/element.cuh"
#include "backend/cuda/reps_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4;
constexpr unsigned kAll = 0xffffffffu;

__global__ void count_tokens(CountArgs args) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < args.n) atomicAdd(args.counts + args.tile_of[i] * args.n_clusters + args.cluster[i], 1);
}

__global__ void sum_counts(CountArgs args) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= args.n_clusters) return;
  int32_t sum = args.before[c];
  for (int64_t tile = 0; tile <= args.n_tiles; ++tile) {
    int32_t& count = args.counts[tile * args.n_clusters + c];
    sum += count;
    count = sum;
  }
  args.before[c] = sum;
}

__device__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, step));
  return x;
}
__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

// Lanes take keys for the scores and columns for the values. Shared memory: kWarps queries and
// kWarps rows of sums, head_dim each.
__global__ void reps_plain(const __grid_constant__ RepsView view, bool bf16) {
  extern __shared__ float shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t d = view.head_dim, row = blockIdx.x;
  const int64_t head = int64_t{blockIdx.y} * kWarps + warp;
  if (head >= view.n_heads) return;
  const int64_t base = head / (view.n_heads / view.n_kv_heads) * view.capacity;
  const ConstRowsView queries{view.queries, view.query_stride, bf16};
  const ConstRowsView keys{view.keys, d, bf16}, values{view.values, d, bf16};
  const int32_t* counts = view.counts + row * view.count_stride;
  float* query = shared + warp * d;
  float* sum = shared + (kWarps + warp) * d;
  float x[1];
  for (int64_t i = lane; i < d; i += 32) {
    load<1>(queries, row, head * d + i, x);
    query[i] = x[0];
    sum[i] = 0;
  }
  __syncwarp();
  const int64_t end = view.causal ? view.first_row + row + 1 : view.first_row + view.n_rows;
  float largest = -INFINITY, total = 0;
  for (int64_t j0 = 0; j0 < end; j0 += 32) {
    const int64_t j = j0 + lane;
    float score = -INFINITY;
    if (j < end) {
      score = 0;
      for (int64_t i = 0; i < d; ++i) {
        load<1>(keys, base + j, i, x);
        score += query[i] * x[0];
      }
      score *= view.scale;
      if (view.multiplicity) score += logf(static_cast<float>(counts[j]));
    }
    const float now = fmaxf(largest, warp_max(score));
    const float kept = expf(largest - now), weight = expf(score - now);
    largest = now;
    total = total * kept + warp_sum(weight);
    const int n = static_cast<int>(end - j0 < 32 ? end - j0 : 32);
    for (int64_t i0 = 0; i0 < d; i0 += 32) {
      const int64_t i = i0 + lane;
      float part = 0;
      for (int key = 0; key < n; ++key) {
        const float p = __shfl_sync(kAll, weight, key);
        if (i >= d) continue;
        load<1>(values, base + j0 + key, i, x);
        part += p * x[0];
      }
      if (i < d) sum[i] = sum[i] * kept + part;
    }
  }
  for (int64_t i = lane; i < d; i += 32) {
    x[0] = sum[i] / total;
    store<1>(RowsView{view.out, view.out_stride, bf16}, row, head * d + i, x);
  }
}

}  // namespace

void count_members(Context& context, const CountArgs& args) {
  const auto bytes = static_cast<size_t>((args.n_tiles + 1) * args.n_clusters) * sizeof(int32_t);
  check(cudaMemsetAsync(args.counts, 0, bytes, context.stream()), "counts");
  count_tokens<<<static_cast<unsigned>(ceil_div(args.n, 256)), 256, 0, context.stream()>>>(args);
  check_launch("count_tokens");
  sum_counts<<<static_cast<unsigned>(ceil_div(args.n_clusters, 128)), 128, 0, context.stream()>>>(
      args);
  check_launch("sum_counts");
}

void attend_reps_plain(Context& context, const RepsView& view, bool bf16) {
  const dim3 grid(static_cast<unsigned>(view.n_rows),
                  static_cast<unsigned>(ceil_div(view.n_heads, kWarps)));
  const auto bytes = static_cast<size_t>(2 * kWarps * view.head_dim) * sizeof(float);
  SLUICE_CHECK(bytes <= 48 * 1024);
  reps_plain<<<grid, 32 * kWarps, bytes, context.stream()>>>(view, bf16);
  check_launch("reps_plain");
}

}  // namespace sluice::cuda
