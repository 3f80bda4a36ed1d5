// Mode `keys` on the tensor cores: a tile of queries that share a border goes over the rows in
// force at it, gathered through their list, and over the near tokens, with one running softmax.

#include "backend/cuda/attention/keys/parts.cuh"
#include "backend/cuda/attention/keys/tile.cuh"

namespace sluice::impl::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16 * kWarps;
static_assert(kRows == kKeysTileRows);

template <int kD>
struct Sizes {
  static constexpr int kKeys = kD <= 128 ? 64 : 32;
  static constexpr bool kQueriesStay = kD > 128;         // in shared memory, for want of registers
  static constexpr int kTile = kKeys * kTileStride<kD>;  // numbers, of keys or of values
  static constexpr int kQueryTile = kRows * kTileStride<kD>;
  static constexpr int kStages = kD <= 128 ? 4 : 2;  // loaded tiles and those in flight
  static constexpr int kBuffers = 2 * kStages * kTile;
  static constexpr int kNumbers =
      kQueriesStay ? kBuffers + kQueryTile : (kBuffers > kQueryTile ? kBuffers : kQueryTile);
  static constexpr int kBytes = 2 * kNumbers + kStages * kKeys * static_cast<int>(sizeof(float));
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
    copy_async(tile + row * kTileStride<kD> + column, exists ? from + 2 * column : view.queries,
               exists);
  }
}

// Row r of a tile is token r / group, head kv_head * group + r % group.
template <int kD>
__device__ void copy_queries(__nv_bfloat16* to, const KeysView& view, const QueryTile& tile,
                             int64_t kv_head, int64_t group, int64_t n_rows) {
  constexpr int kChunks = kD / 8;
  const auto* queries = reinterpret_cast<const __nv_bfloat16*>(view.queries);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool exists = row < n_rows && column < view.head_dim;
    const int64_t at = (tile.row + row / group) * view.query_stride +
                       (kv_head * group + row % group) * view.head_dim + column;
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
  const int64_t group = view.n_heads / view.n_kv_heads;
  auto* out = reinterpret_cast<__nv_bfloat16*>(view.out);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = warp * 16 + g + 8 * half;
    if (r >= n_rows) continue;
    if (view.n_splits == 1) {
      const float inverse = 1 / softmax.total[half];
      if (t == 0)
        store_log_sum(view, tile.row + r / group, kv_head * group + r % group,
                      softmax.largest[half] * view.scale + logf(softmax.total[half]));
      __nv_bfloat16* row = out + (tile.row + r / group) * view.out_stride +
                           (kv_head * group + r % group) * view.head_dim;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
        if (n * 8 < view.head_dim)
          *reinterpret_cast<uint32_t*>(row + n * 8 + 2 * t) =
              narrowed(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
      continue;
    }
    const int64_t at = KeyParts::at(view, tile_index, kv_head, r, split);
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
      if (n * 8 < view.head_dim)
        for (int i = 0; i < 2; ++i)
          parts.sums[at * view.head_dim + n * 8 + 2 * t + i] = sums[n][2 * half + i];
    if (t == 0) {
      parts.largest[at] = softmax.largest[half] * (view.scale * kLog2E);
      parts.total[at] = softmax.total[half];
    }
  }
}

// A warp's 16 queries as the left operand.
template <int kD>
struct QueryOperand {
  uint32_t registers[Sizes<kD>::kQueriesStay ? 1 : kD / 16][4];
  const __nv_bfloat16* tile;

  // From a tile in shared memory, whose copies are committed. Where queries do not stay in shared
  // memory, the tile is free after.
  __device__ __forceinline__ explicit QueryOperand(const __nv_bfloat16* query_tile)
      : tile(query_tile) {
    if constexpr (!Sizes<kD>::kQueriesStay) {
      wait_copies<0>();
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kD / 16; ++k) load_query<kD>(registers[k], tile, k * 16);
      __syncthreads();
    }
  }
  // scores += queries times a tile of keys.
  template <int kN>
  __device__ __forceinline__ void add_to(float (&scores)[kN][4], const __nv_bfloat16* keys) const {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      if constexpr (Sizes<kD>::kQueriesStay) {
        uint32_t again[4];
        load_query<kD>(again, tile, k * 16);
        add_scores<kD>(scores, again, keys, 0, k * 16);
      } else {
        add_scores<kD>(scores, registers[k], keys, 0, k * 16);
      }
    }
  }
};

// A tile of keys, behind which its values lie: scores, of which finish(scores) hides or shifts
// some, a step of the softmax, and the weighted sums. factor: scale * log2(e).
template <int kD, typename Finish>
__device__ __forceinline__ void attend_tile(Softmax& softmax, float (&sums)[kD / 8][4],
                                            const QueryOperand<kD>& query,
                                            const __nv_bfloat16* tile, float factor,
                                            const Finish& finish) {
  using S = Sizes<kD>;
  float scores[S::kKeys / 8][4] = {}, kept[2];
  query.add_to(scores, tile);
  finish(scores);
  take_scores(softmax, scores, factor, kept);
  scale_sums(sums, kept);
  add_values<kD>(sums, scores, tile + S::kTile, 0);
}

// Tiles [begin, end) of the keys that a block goes over, far ones before near ones.
template <int kD>
struct BlockKeys {
  static constexpr int kKeys = Sizes<kD>::kKeys;
  SeenKeys seen;
  HeadRows rows[2];  // of keys, and of values
  int64_t n_near, far_tiles, begin, end;

  __device__ __forceinline__ BlockKeys(const KeysView& view, const QueryTile& tile, int64_t kv_head,
                                       int split)
      : seen(keys_of(view, tile, kv_head)),
        rows{head_rows(view, false, kv_head, 2), head_rows(view, true, kv_head, 2)} {
    n_near = seen.near_end > seen.near_begin ? seen.near_end - seen.near_begin : 0;
    far_tiles = (seen.n_far + kKeys - 1) / kKeys;
    const int64_t all_tiles = far_tiles + (n_near + kKeys - 1) / kKeys;
    begin = all_tiles * split / view.n_splits;
    end = all_tiles * (split + 1) / view.n_splits;
  }
  __device__ __forceinline__ int stage_of(int64_t tile) const {
    return static_cast<int>((tile - begin) % Sizes<kD>::kStages);
  }
  // Position of the first key of a near tile.
  __device__ __forceinline__ int64_t first_near(int64_t tile) const {
    return seen.near_begin + (tile - far_tiles) * kKeys;
  }
  // Starts copying a tile; biases: of all stages.
  __device__ __forceinline__ void start_copy(const KeysView& view, __nv_bfloat16* shared,
                                             float* biases, int64_t tile) const {
    const int stage = stage_of(tile);
    const bool far = tile < far_tiles;
    const int64_t first = (far ? tile : tile - far_tiles) * kKeys;
    const auto row_of = [&](int row) {
      if (far) return first + row < seen.n_far ? seen.far_row(first + row) : kNoRow;
      return first + row < n_near ? seen.near_row(seen.near_begin + first + row) : kNoRow;
    };
#pragma unroll
    for (int part = 0; part < 2; ++part)
      copy_keys<kD, kKeys>(shared + (2 * stage + part) * Sizes<kD>::kTile,
                           static_cast<int>(view.head_dim), view,
                           [&](int row) { return rows[part].far(row_of(row)); });
    if (far && threadIdx.x < kKeys)
      biases[stage * kKeys + threadIdx.x] =
          first + threadIdx.x < seen.n_far ? seen.bias[first + threadIdx.x] : -INFINITY;
  }
};

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    keys_tiles(const __grid_constant__ KeysView view, KeyParts parts) {
  using S = Sizes<kD>;
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  auto* biases = reinterpret_cast<float*>(shared + S::kNumbers);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int split = static_cast<int>(blockIdx.x % view.n_splits);
  // Late queries see most keys: they go first, so that the last blocks are short.
  const int64_t tile_index = view.n_tiles - 1 - blockIdx.x / view.n_splits;
  const int64_t kv_head = blockIdx.y, group = view.n_heads / view.n_kv_heads;
  const QueryTile tile = tile_at(view, tile_index);
  const int64_t n_rows = tile.n * group;
  const BlockKeys<kD> block(view, tile, kv_head, split);

  __nv_bfloat16* query_tile = S::kQueriesStay ? shared + S::kBuffers : shared;
  copy_queries<kD>(query_tile, view, tile, kv_head, group, n_rows);
  commit_copies();
  const QueryOperand<kD> query(query_tile);

  Softmax softmax;
  float sums[kD / 8][4] = {};
  const float factor = view.scale * kLog2E;
  const auto position_of = [&](int64_t r) {
    return query_position(view, tile.row + min(r / group, tile.n - 1));
  };
  const int64_t row = warp * 16 + lane / 4;
  const int64_t positions[2] = {position_of(row), position_of(row + 8)};
  const int64_t warp_first = position_of(warp * 16), warp_last = position_of(warp * 16 + 15);
  for (int64_t j = block.begin; j < block.begin + S::kStages - 1; ++j) {
    if (j < block.end) block.start_copy(view, shared, biases, j);
    commit_copies();
  }
  for (int64_t j = block.begin; j < block.end; ++j) {
    wait_copies<S::kStages - 2>();
    __syncthreads();
    const int64_t next = j + S::kStages - 1;
    if (next < block.end) block.start_copy(view, shared, biases, next);
    commit_copies();
    if (warp * 16 >= n_rows) continue;
    const int stage = block.stage_of(j);
    const bool far = j < block.far_tiles;
    const int64_t first_key = block.first_near(j);
    if (!far && view.causal && first_key > warp_last) continue;
    const auto finish = [&](float(&scores)[S::kKeys / 8][4]) {
      if (far)
        add_bias(scores, biases + stage * S::kKeys);
      else if (first_key + S::kKeys > block.seen.near_end ||
               (view.causal && first_key + S::kKeys - 1 > warp_first))
        mask_near(scores, first_key, block.seen.near_end, view.causal, positions);
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
  const int64_t group = view.n_heads / view.n_kv_heads, column = threadIdx.x;
  if (r >= tile.n * group || column >= view.head_dim) return;
  const int64_t first = KeyParts::at(view, tile_index, kv_head, r, 0);
  float largest = -INFINITY, total = 0, sum = 0;
  for (int64_t i = 0; i < view.n_splits; ++i) largest = fmaxf(largest, parts.largest[first + i]);
  for (int64_t i = 0; i < view.n_splits; ++i) {
    const float part = exp2_fast(parts.largest[first + i] - largest);
    total += parts.total[first + i] * part;
    sum += parts.sums[(first + i) * view.head_dim + column] * part;
  }
  if (column == 0)
    store_log_sum(view, tile.row + r / group, kv_head * group + r % group,
                  largest / kLog2E + logf(total));
  const float value[1] = {sum / total};
  store<1>(RowsView{view.out, view.out_stride, true}, tile.row + r / group,
           (kv_head * group + r % group) * view.head_dim + column, value);
}

template <int kD>
void launch(Context& context, const KeysView& view, const KeyParts& parts) {
  constexpr int kBytes = Sizes<kD>::kBytes;
  check(cudaFuncSetAttribute(keys_tiles<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  const dim3 grid(static_cast<unsigned>(view.n_tiles * view.n_splits),
                  static_cast<unsigned>(view.n_kv_heads));
  keys_tiles<kD><<<grid, kThreads, kBytes, context.stream()>>>(view, parts);
  check_launch("keys_tiles");
}

}  // namespace

void put_keys_together(Context& context, const KeysView& view, const KeyParts& parts) {
  const int64_t group = view.n_heads / view.n_kv_heads;
  const int64_t n_rows = view.n_tiles == 1 ? view.only.n * group : view.n_tiles * kRows;
  const dim3 grid(static_cast<unsigned>(n_rows), static_cast<unsigned>(view.n_kv_heads));
  const auto threads = static_cast<unsigned>(round_up(view.head_dim, 32));
  put_together<<<grid, threads, 0, context.stream()>>>(view, parts);
  check_launch("put_together");
}

void attend_keys_tiles(const std::shared_ptr<Context>& context, const KeysView& view) {
  KeyParts parts{};
  DeviceArray<float> memory;
  if (view.n_splits > 1) parts = make_parts(context, view, memory);
  if (view.head_dim <= 64)
    launch<64>(*context, view, parts);
  else if (view.head_dim <= 96)
    launch<96>(*context, view, parts);
  else if (view.head_dim <= 128)
    launch<128>(*context, view, parts);
  else
    launch<256>(*context, view, parts);
  if (view.n_splits > 1) put_keys_together(*context, view, parts);
}

}  // namespace sluice::impl::cuda
