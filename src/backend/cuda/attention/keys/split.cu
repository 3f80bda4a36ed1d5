// Mode `keys` of few queries, as attention/dense/split.cu has it for dense attention: the query
// heads of a key head are the rows of one tile, and the keys are split over blocks and, within a
// tile, over warps. Memory is all that counts: lists are read a tile ahead of the rows they name.

#include "backend/cuda/attention/dense/split.cuh"
#include "backend/cuda/attention/keys/parts.cuh"
#include "backend/cuda/attention/keys/tile.cuh"

namespace sluice::impl::cuda::keys {
namespace {

using namespace dense::few;

// The query rows of a block: a tile of those of a key head.
struct Block {
  int64_t kv_head, group;
  int64_t first_row, n_rows;  // of the tile; all rows of the key head

  __device__ __forceinline__ Block(const KeysView& view, int n_row_tiles)
      : kv_head(blockIdx.y / n_row_tiles),
        group(view.heads.group()),
        first_row(blockIdx.y % n_row_tiles * kRows),
        n_rows(view.tiles.only.n * group) {}
};

// Rows g and g + 8 of the queries as the left operand, and their positions.
template <int kD>
__device__ __forceinline__ void load_queries(uint32_t (&query)[kD / 16][4], int64_t (&positions)[2],
                                             const KeysView& view, const Block& block) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  for (int half = 0; half < 2; ++half) {
    const int64_t mine = block.first_row + g + 8 * half;
    const bool exists = mine < block.n_rows;
    const int64_t r = exists ? mine : block.first_row, row = view.tiles.only.row + r / block.group;
    positions[half] = query_position(view, row);
    const auto* from = reinterpret_cast<const __nv_bfloat16*>(view.queries.data) +
                       row * view.queries.stride +
                       (block.kv_head * block.group + r % block.group) * view.heads.head_dim;
    load_query_row<kD>(query, half, exists ? from : nullptr, static_cast<int>(view.heads.head_dim));
  }
}

// The rows that this thread copies of the next tile, and the bias of one.
template <int kD>
struct Coming {
  static constexpr int kChunks = kD / 8;
  static constexpr int kCopies = kKeys * kChunks / kThreads;  // of a thread, 16 bytes each
  int32_t rows[kCopies];
  float bias = 0;

  __device__ __forceinline__ void read_list(const KeyTiles<kKeys>& keys, int64_t tile) {
    const bool exists = tile < keys.end;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = (static_cast<int>(threadIdx.x) + i * kThreads) / kChunks;
      rows[i] = exists ? keys.row_of(tile, row) : kNoRow;
    }
    if (threadIdx.x < kKeys)
      bias = exists && tile < keys.far_tiles ? keys.bias_of(tile, threadIdx.x) : -INFINITY;
  }
  // Starts copying them; rows_of: of keys, and of values.
  __device__ __forceinline__ void start_copy(__nv_bfloat16* tile, const KeysView& view,
                                             const HeadRows (&rows_of)[2]) const {
    const auto head_dim = static_cast<int>(view.heads.head_dim);
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int at = static_cast<int>(threadIdx.x) + i * kThreads;
        const int row = at / kChunks, column = at % kChunks * 8;
        const std::byte* from = rows_of[part].far(rows[i]);
        const bool exists = from != nullptr && column < head_dim;
        copy_async(tile + (part * kKeys + row) * kTileStride<kD> + column,
                   exists ? from + 2 * column : view.queries.data, exists);
      }
  }
};

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    keys_split(const __grid_constant__ KeysView view, KeyParts parts, int n_row_tiles) {
  using S = Sizes<kD>;
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  __shared__ float biases[S::kStages][kKeys];
  __shared__ Share shares[kWarps][kRows];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Block block(view, n_row_tiles);
  const KeyTiles<kKeys> keys(view, view.tiles.only, block.kv_head, blockIdx.x);
  const HeadRows rows_of[2] = {head_rows(view, false, block.kv_head, 2),
                               head_rows(view, true, block.kv_head, 2)};
  uint32_t query[kD / 16][4];
  int64_t positions[2];
  load_queries<kD>(query, positions, view, block);

  Coming<kD> coming;
  const auto stage_of = [&](int64_t tile) {
    return static_cast<int>((tile - keys.begin) % S::kStages);
  };
  // Nothing, but counted, behind the last tile.
  const auto start_copy = [&](int64_t tile) {
    const int stage = stage_of(tile);
    if (tile < keys.end) {
      coming.start_copy(shared + 2 * stage * S::kTile, view, rows_of);
      if (threadIdx.x < kKeys) biases[stage][threadIdx.x] = coming.bias;
    }
    commit_copies();
    coming.read_list(keys, tile + 1);
  };
  Softmax softmax;
  float own[kD / 8][4] = {};  // sums
  const float factor = view.heads.scale * kLog2E;
  coming.read_list(keys, keys.begin);
  for (int i = 0; i < S::kStages - 1; ++i) start_copy(keys.begin + i);
  for (int64_t tile = keys.begin; tile < keys.end; ++tile) {
    wait_copies<S::kStages - 2>();
    __syncthreads();
    start_copy(tile + S::kStages - 1);
    const int stage = stage_of(tile);
    const auto finish = [&](float(&scores)[2][4]) {
      if (tile < keys.far_tiles) return add_bias(scores, biases[stage] + warp * 16);
      const int64_t first = keys.first_near(tile) + warp * 16;
      mask_near(scores, first, keys.seen.near_end, view.heads.causal, positions);
    };
    attend_tile<kD>(softmax, own, query, shared + 2 * stage * S::kTile, factor, finish);
  }

  leave_share(shares, softmax, factor);
  wait_copies<0>();
  __syncthreads();  // the tiles are free too
  auto* sums = reinterpret_cast<float*>(shared);
  add_warps<kD>(sums, own, shares);
  const auto n_rows = static_cast<int>(min(block.n_rows - block.first_row, int64_t{kRows}));
  write_parts<kD>(parts, sums, shares, static_cast<int>(view.heads.head_dim), n_rows, [&](int row) {
    return KeyParts::at(view, 0, block.kv_head, block.first_row + row, blockIdx.x);
  });
}

template <int kD>
void launch(const std::shared_ptr<Context>& context, KeysView view) {
  const int64_t group = view.heads.group();
  const int64_t n_row_tiles = ceil_div(view.tiles.only.n * group, kRows);
  constexpr int kBytes = Sizes<kD>::kBytes;
  const int64_t most_blocks = view.heads.n_kv_heads * ceil_div(view.split.n_few * group, kRows);
  view.split.n = splits_of<keys_split<kD>, kBytes>(*context, most_blocks, view.split.most_keys);
  DeviceArray<float> memory;
  const KeyParts parts = make_parts(context, view, memory);
  const dim3 grid(static_cast<unsigned>(view.split.n),
                  static_cast<unsigned>(view.heads.n_kv_heads * n_row_tiles));
  keys_split<kD>
      <<<grid, kThreads, kBytes, context->stream()>>>(view, parts, static_cast<int>(n_row_tiles));
  check_launch("keys_split");
  put_keys_together(*context, view, parts);
}

}  // namespace

void attend_keys_split(const std::shared_ptr<Context>& context, KeysView view) {
  SLUICE_CHECK(view.tiles.n == 1 && view.split.n_few > 0 && view.heads.head_dim <= kMostSplitDim);
  if (view.heads.head_dim <= 64) return launch<64>(context, view);
  launch<128>(context, view);
}

}  // namespace sluice::impl::cuda::keys
