// Mode `keys` on the tensor cores: a tile of queries that share a border goes over the rows in
// force at it, gathered through their list, and over the near tokens, with one running softmax.

#include "backend/cuda/attention/dense/tiles.cuh"
#include "backend/cuda/attention/keys/parts.cuh"
#include "backend/cuda/attention/keys/tile.cuh"

namespace sluice::impl::cuda::keys {
namespace {

using namespace dense::query_tiles;
static_assert(kRows == kKeysTileRows);

template <int kD>
struct KeysSizes : Sizes<kD, kD <= 128 ? 4 : 2> {
  using S = Sizes<kD, kD <= 128 ? 4 : 2>;
  static constexpr int kBytes =
      2 * S::kNumbers + S::kStages * S::kKeys * static_cast<int>(sizeof(float));
};

// Starts copying kKeys rows to a tile; row_at(r) is where row r begins, or nullptr.
template <int kD, int kKeys, typename RowAt>
__device__ void copy_keys(__nv_bfloat16* tile, int head_dim, const KeysView& view,
                          const RowAt& row_at) {
  constexpr int kChunks = kD / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const std::byte* from = row_at(row);
    const bool exists = from != nullptr && column < head_dim;
    copy_async(tile + row * kTileStride<kD> + column,
               exists ? from + 2 * column : view.queries.data, exists);
  }
}

// Row r of a tile is token r / group, head kv_head * group + r % group.
template <int kD>
__device__ void copy_queries(__nv_bfloat16* to, const KeysView& view, const QueryTile& tile,
                             int64_t kv_head, int64_t group, int64_t n_rows) {
  constexpr int kChunks = kD / 8;
  const auto* queries = reinterpret_cast<const __nv_bfloat16*>(view.queries.data);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool exists = row < n_rows && column < view.heads.head_dim;
    const int64_t at = (tile.row + row / group) * view.queries.stride +
                       (kv_head * group + row % group) * view.heads.head_dim + column;
    copy_async(to + row * kTileStride<kD> + column, queries + (exists ? at : 0), exists);
  }
}

template <int kD>
__device__ void store_rows(const KeysView& view, const KeyParts& parts,
                           const float (&sums)[kD / 8][4], const Softmax& softmax,
                           const QueryTile& tile, int64_t tile_index, int64_t kv_head, int split,
                           int64_t n_rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t group = view.heads.group();
  auto* out = reinterpret_cast<__nv_bfloat16*>(view.queries.out);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = warp * 16 + g + 8 * half;
    if (r >= n_rows) continue;
    if (view.split.n == 1) {
      const float inverse = 1 / softmax.total[half];
      if (t == 0)
        store_log_sum(view, tile.row + r / group, kv_head * group + r % group,
                      softmax.largest[half] * view.heads.scale + logf(softmax.total[half]));
      __nv_bfloat16* row = out + (tile.row + r / group) * view.queries.out_stride +
                           (kv_head * group + r % group) * view.heads.head_dim;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
        if (n * 8 < view.heads.head_dim)
          *reinterpret_cast<uint32_t*>(row + n * 8 + 2 * t) =
              narrowed(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
      continue;
    }
    const int64_t at = KeyParts::at(view, tile_index, kv_head, r, split);
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
      if (n * 8 < view.heads.head_dim)
        for (int i = 0; i < 2; ++i)
          parts.sums[at * view.heads.head_dim + n * 8 + 2 * t + i] = sums[n][2 * half + i];
    if (t == 0) {
      parts.largest[at] = softmax.largest[half] * (view.heads.scale * kLog2E);
      parts.total[at] = softmax.total[half];
    }
  }
}

// Starts copying a tile of keys and values to its stage.
template <int kD>
__device__ __forceinline__ void start_copy(__nv_bfloat16* stage, float* biases,
                                           const KeysView& view, const HeadRows (&rows)[2],
                                           const KeyTiles<KeysSizes<kD>::kKeys>& keys,
                                           int64_t tile) {
  using S = KeysSizes<kD>;
#pragma unroll
  for (int part = 0; part < 2; ++part)
    copy_keys<kD, S::kKeys>(stage + part * S::kTile, static_cast<int>(view.heads.head_dim), view,
                            [&](int row) { return rows[part].far(keys.row_of(tile, row)); });
  if (tile < keys.far_tiles && threadIdx.x < S::kKeys)
    biases[threadIdx.x] = keys.bias_of(tile, threadIdx.x);
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    keys_tiles(const __grid_constant__ KeysView view, KeyParts parts) {
  using S = KeysSizes<kD>;
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  auto* biases = reinterpret_cast<float*>(shared + S::kNumbers);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int split = static_cast<int>(blockIdx.x % view.split.n);
  // Late queries see most keys: they go first, so that the last blocks are short.
  const int64_t tile_index = view.tiles.n - 1 - blockIdx.x / view.split.n;
  const int64_t kv_head = blockIdx.y, group = view.heads.group();
  const QueryTile tile = tile_at(view, tile_index);
  const int64_t n_rows = tile.n * group;
  const KeyTiles<S::kKeys> keys(view, tile, kv_head, split);
  const HeadRows rows[2] = {head_rows(view, false, kv_head, 2), head_rows(view, true, kv_head, 2)};

  __nv_bfloat16* query_tile = shared + S::kQueriesAt;
  copy_queries<kD>(query_tile, view, tile, kv_head, group, n_rows);
  commit_copies();
  const QueryOperand<kD> query(query_tile);

  const auto stage_of = [&](int64_t j) { return static_cast<int>((j - keys.begin) % S::kStages); };
  const auto start = [&](int64_t j) {
    const int stage = stage_of(j);
    start_copy<kD>(shared + 2 * stage * S::kTile, biases + stage * S::kKeys, view, rows, keys, j);
  };
  Softmax softmax;
  float sums[kD / 8][4] = {};
  const float factor = view.heads.scale * kLog2E;
  const auto position_of = [&](int64_t r) {
    return query_position(view, tile.row + min(r / group, tile.n - 1));
  };
  const int64_t row = warp * 16 + lane / 4;
  const int64_t positions[2] = {position_of(row), position_of(row + 8)};
  const int64_t warp_first = position_of(warp * 16), warp_last = position_of(warp * 16 + 15);
  for (int64_t j = keys.begin; j < keys.begin + S::kStages - 1; ++j) {
    if (j < keys.end) start(j);
    commit_copies();
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    wait_copies<S::kStages - 2>();
    __syncthreads();
    const int64_t next = j + S::kStages - 1;
    if (next < keys.end) start(next);
    commit_copies();
    if (warp * 16 >= n_rows) continue;
    const int stage = stage_of(j);
    const bool far = j < keys.far_tiles;
    const int64_t first_key = keys.first_near(j);
    if (!far && view.heads.causal && first_key > warp_last) continue;
    const auto finish = [&](float(&scores)[S::kKeys / 8][4]) {
      if (far)
        add_bias(scores, biases + stage * S::kKeys);
      else if (first_key + S::kKeys > keys.seen.near_end ||
               (view.heads.causal && first_key + S::kKeys - 1 > warp_first))
        mask_near(scores, first_key, keys.seen.near_end, view.heads.causal, positions);
    };
    attend_tile<kD>(softmax, sums, query, shared + 2 * stage * S::kTile, factor, finish);
  }
  add_lanes(softmax);
  store_rows<kD>(view, parts, sums, softmax, tile, tile_index, kv_head, split, n_rows);
}

// One block to a row of a tile, one thread to a column.
__global__ void put_together(const __grid_constant__ KeysView view, KeyParts parts) {
  const int64_t tile_index = blockIdx.x / kRows, r = blockIdx.x % kRows, kv_head = blockIdx.y;
  const QueryTile tile = tile_at(view, tile_index);
  const int64_t group = view.heads.group(), column = threadIdx.x;
  if (r >= tile.n * group || column >= view.heads.head_dim) return;
  const int64_t first = KeyParts::at(view, tile_index, kv_head, r, 0);
  const ColumnSum all =
      parts.together(first, static_cast<int>(view.split.n), view.heads.head_dim, column);
  if (column == 0)
    store_log_sum(view, tile.row + r / group, kv_head * group + r % group,
                  all.largest / kLog2E + logf(all.total));
  const float value[1] = {all.sum / all.total};
  store<1>(RowsView{view.queries.out, view.queries.out_stride, true}, tile.row + r / group,
           (kv_head * group + r % group) * view.heads.head_dim + column, value);
}

template <int kD>
void launch(Context& context, const KeysView& view, const KeyParts& parts) {
  constexpr int kBytes = KeysSizes<kD>::kBytes;
  check(cudaFuncSetAttribute(keys_tiles<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  const dim3 grid(static_cast<unsigned>(view.tiles.n * view.split.n),
                  static_cast<unsigned>(view.heads.n_kv_heads));
  keys_tiles<kD><<<grid, kThreads, kBytes, context.stream()>>>(view, parts);
  check_launch("keys_tiles");
}

}  // namespace

void put_keys_together(Context& context, const KeysView& view, const KeyParts& parts) {
  const int64_t group = view.heads.group();
  const int64_t n_rows = view.tiles.n == 1 ? view.tiles.only.n * group : view.tiles.n * kRows;
  const dim3 grid(static_cast<unsigned>(n_rows), static_cast<unsigned>(view.heads.n_kv_heads));
  const auto threads = static_cast<unsigned>(round_up(view.heads.head_dim, 32));
  put_together<<<grid, threads, 0, context.stream()>>>(view, parts);
  check_launch("put_together");
}

void attend_keys_tiles(const std::shared_ptr<Context>& context, const KeysView& view) {
  KeyParts parts{};
  DeviceArray<float> memory;
  if (view.split.n > 1) parts = make_parts(context, view, memory);
  if (view.heads.head_dim <= 64)
    launch<64>(*context, view, parts);
  else if (view.heads.head_dim <= 96)
    launch<96>(*context, view, parts);
  else if (view.heads.head_dim <= 128)
    launch<128>(*context, view, parts);
  else
    launch<256>(*context, view, parts);
  if (view.split.n > 1) put_keys_together(*context, view, parts);
}

}  // namespace sluice::impl::cuda::keys
