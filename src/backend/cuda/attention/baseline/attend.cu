// Exact attention to the pages that each query reads.

#include "backend/cuda/attention/baseline/tile.cuh"

namespace sluice::impl::cuda::baseline {
namespace {

// Shared memory: a QueryTile's, values (kPage, head_dim + 1), sums (kTile, head_dim), then of each
// query the largest score, the sum of weights, and how much of the sums so far a page leaves.
__global__ void attend_pages(const __grid_constant__ PassView pass) {
  extern __shared__ float shared[];
  const int64_t dim = pass.head_dim;
  const QueryTile tile(pass, blockIdx.y, int64_t{blockIdx.x} * kTile, pass.n_tokens, shared);
  float* const values = shared + QueryTile::n_floats(dim);
  float* const sums = values + kPage * tile.stride();
  float* const largest = sums + kTile * dim;
  float* const total = largest + kTile;
  float* const kept = total + kTile;
  for (int i = threadIdx.x; i < kTile * dim; i += kThreads) sums[i] = 0;
  for (int i = threadIdx.x; i < kTile; i += kThreads) {
    largest[i] = -INFINITY;
    total[i] = 0;
  }
  const auto reads = [&](int query, int64_t page) {
    const uint32_t* words =
        pass.reads + ((tile.row + query) * pass.n_heads + tile.head) * pass.n_words;
    return words[page / 32] >> (page % 32) & 1;
  };
  unsigned long long n_read = 0;
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t page = 0; page * kPage <= tile.position(tile.n - 1); ++page) {
    if (!__syncthreads_or(lane < tile.n && reads(lane, page))) continue;
    tile.score_page(page, [&](int query, int64_t key) {
      return reads(query, page) &&
             (key < kBaselineSinks || key > tile.position(query) - pass.window);
    });
    tile.load_page(pass.values, page, values);
    if (lane < tile.n) {
      float* scores = tile.scores + lane * kPage;
      float now = largest[lane];
      for (int i = 0; i < kPage; ++i) now = fmaxf(now, scores[i]);
      kept[lane] = now == -INFINITY ? 1.0f : expf(largest[lane] - now);
      total[lane] *= kept[lane];
      for (int i = 0; i < kPage; ++i) {
        n_read += scores[i] != -INFINITY;
        scores[i] = scores[i] == -INFINITY ? 0.0f : expf(scores[i] - now);
        total[lane] += scores[i];
      }
      largest[lane] = now;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tile.n * dim; i += kThreads) {
      const int64_t query = i / dim, d = i % dim;
      float sum = sums[i] * kept[query];
      for (int key = 0; key < kPage; ++key) {
        const float weight = tile.scores[query * kPage + key];
        // A row beyond the end was not loaded.
        if (weight != 0) sum += weight * values[key * tile.stride() + d];
      }
      sums[i] = sum;
    }
  }
  if (n_read > 0) atomicAdd(pass.n_read, n_read);
  __syncthreads();
  for (int i = threadIdx.x; i < tile.n * dim; i += kThreads) {
    const int64_t query = i / dim, d = i % dim;
    const float out[1] = {sums[i] / total[query]};
    store<1>(RowsView{pass.out, pass.out_stride, pass.bf16}, tile.row + query, tile.head * dim + d,
             out);
  }
}

}  // namespace

void attend(const Context& context, const PassView& pass) {
  const auto bytes =
      static_cast<int>((QueryTile::n_floats(pass.head_dim) + kPage * (pass.head_dim + 1) +
                        kTile * pass.head_dim + 3 * kTile) *
                       int64_t{sizeof(float)});
  check(cudaFuncSetAttribute(attend_pages, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory of a baseline");
  const dim3 grid(static_cast<unsigned>(ceil_div(pass.n_tokens, kTile)),
                  static_cast<unsigned>(pass.n_heads));
  attend_pages<<<grid, kThreads, static_cast<size_t>(bytes), context.stream()>>>(pass);
  check_launch("attention of a baseline");
}

}  // namespace sluice::impl::cuda::baseline
