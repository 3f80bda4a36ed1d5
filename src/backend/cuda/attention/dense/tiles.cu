// Attention of blocks of 128 queries, 16 to a warp, over tiles of keys with a running softmax. The
// next tile is copied while one is worked on.

#include "backend/cuda/attention/dense/tiles.cuh"

namespace sluice::impl::cuda::dense {
namespace {

using namespace query_tiles;

template <int kD, bool kCapped>
__global__ void __launch_bounds__(kThreads, 1) tiles(AttendView view) {
  using S = Sizes<kD, 2>;
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto head_dim = static_cast<int>(view.head_dim);
  // Late queries see most keys: they go first, so that the last blocks are short.
  const int64_t q0 = (int64_t{gridDim.x} - 1 - blockIdx.x) * kRows;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int64_t kv_head = head / (view.n_heads / view.n_kv_heads);
  const int64_t base = (batch * view.n_kv_heads + kv_head) * view.capacity * view.head_dim;
  const auto* keys = reinterpret_cast<const __nv_bfloat16*>(view.keys) + base;
  const auto* values = reinterpret_cast<const __nv_bfloat16*>(view.values) + base;
  const auto* queries = reinterpret_cast<const __nv_bfloat16*>(view.queries) +
                        batch * view.n_tokens * view.query_stride + head * view.head_dim;

  // Which keys any query of the block sees.
  const int64_t n_keys = view.first_position + view.n_tokens;
  const int64_t q_end = q0 + kRows < view.n_tokens ? q0 + kRows : view.n_tokens;
  const int64_t end = view.causal ? view.first_position + q_end : n_keys;
  int64_t begin = 0;
  if (view.window > 0 && view.first_position + q0 + 1 > view.window)
    begin = (view.first_position + q0 + 1 - view.window) / S::kKeys * S::kKeys;

  __nv_bfloat16* query_tile = shared + S::kQueriesAt;
  copy_tile<kD, kRows, kThreads>(query_tile, queries, view.query_stride, q0, view.n_tokens,
                                 head_dim);
  commit_copies();
  const QueryOperand<kD> query(query_tile);
  const auto start_copy = [&](int64_t first, int buffer) {
    __nv_bfloat16* tile = shared + 2 * buffer * S::kTile;
    copy_tile<kD, S::kKeys, kThreads>(tile, keys, view.head_dim, first, end, head_dim);
    copy_tile<kD, S::kKeys, kThreads>(tile + S::kTile, values, view.head_dim, first, end, head_dim);
    commit_copies();
  };

  Softmax softmax;
  float sums[kD / 8][4] = {};
  const float factor = view.scale * kLog2E;
  const int64_t my_query = q0 + warp * 16 + lane / 4;
  const int64_t warp_first = view.first_position + q0 + warp * 16, warp_last = warp_first + 15;
  const int64_t positions[2] = {view.first_position + my_query, view.first_position + my_query + 8};
  start_copy(begin, 0);
  int buffer = 0;
  for (int64_t j = begin; j < end; j += S::kKeys, buffer ^= 1) {
    wait_copies<0>();
    __syncthreads();
    if (j + S::kKeys < end) start_copy(j + S::kKeys, buffer ^ 1);
    if ((view.causal && j > warp_last) ||
        (view.window > 0 && j + S::kKeys <= warp_first + 1 - view.window))
      continue;
    const auto finish = [&](float(&scores)[S::kKeys / 8][4]) {
      if constexpr (kCapped) cap_scores(scores, view.cap);
      if ((view.causal && j + S::kKeys - 1 > warp_first) || j + S::kKeys > n_keys ||
          (view.window > 0 && j <= warp_last - view.window))
        mask_scores(scores, seen_from(view, j, positions, n_keys));
    };
    attend_tile<kD>(softmax, sums, query, shared + 2 * buffer * S::kTile, factor, finish);
  }
  add_lanes(softmax);
  store_sums(view, {batch * view.n_tokens, my_query, head}, 0, sums, softmax.total);
}

template <int kD>
void launch(Context& context, const AttendView& view) {
  constexpr int kBytes = 2 * Sizes<kD, 2>::kNumbers;
  const auto kernel = view.cap > 0 ? tiles<kD, true> : tiles<kD, false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  const dim3 grid(static_cast<unsigned>(ceil_div(view.n_tokens, kRows)),
                  static_cast<unsigned>(view.n_heads), static_cast<unsigned>(view.n_batch));
  kernel<<<grid, kThreads, kBytes, context.stream()>>>(view);
  check_launch("tiles");
}

}  // namespace

void attend_tiles(Context& context, const AttendView& view) {
  if (view.head_dim <= 64) return launch<64>(context, view);
  if (view.head_dim <= 96) return launch<96>(context, view);
  if (view.head_dim <= 128) return launch<128>(context, view);
  launch<256>(context, view);
}

}  // namespace sluice::impl::cuda::dense
