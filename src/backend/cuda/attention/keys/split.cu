// Mode `keys` of few queries, as attention/dense/split.cu has it for dense attention: the query
// heads of a key head are the rows of one tile, and the keys are split over blocks and, within a
// tile, over warps. Memory is all that counts: lists are read a tile ahead of the rows they name.

#include <algorithm>

#include "backend/cuda/attention/keys/parts.cuh"
#include "backend/cuda/attention/keys/tile.cuh"

namespace sluice::impl::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16;
constexpr int kKeys = 16 * kWarps;  // of a tile, 16 to a warp
// Tiles in shared memory; the copies of all but one are in flight.
template <int kD>
constexpr int kStages = kD <= 64 ? 4 : 3;
template <int kD>
constexpr int kBytes = kStages<kD> * 2 * 2 * kKeys* kTileStride<kD>;

// Row g (half 0) or g + 8 (half 1) of the queries as the left operand; from: where it begins, or
// nullptr.
template <int kD>
__device__ __forceinline__ void load_query_row(uint32_t (&query)[kD / 16][4], int half,
                                               const __nv_bfloat16* from, int head_dim) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k)
#pragma unroll
    for (int k_half = 0; k_half < 2; ++k_half) {
      const int column = k * 16 + k_half * 8 + 2 * t;
      query[k][half + 2 * k_half] = from != nullptr && column < head_dim
                                        ? *reinterpret_cast<const uint32_t*>(from + column)
                                        : 0;
    }
}

// A warp's 16 keys of a tile of keys, behind which its values lie: scores, of which finish(scores)
// hides or shifts some, a step of the softmax, and the weighted sums. factor: scale * log2(e).
template <int kD, typename Finish>
__device__ __forceinline__ void attend_tile(Softmax& softmax, float (&sums)[kD / 8][4],
                                            const uint32_t (&query)[kD / 16][4],
                                            const __nv_bfloat16* tile, float factor,
                                            const Finish& finish) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float scores[2][4] = {}, kept[2];
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) add_scores<kD>(scores, query[k], tile, warp * 16, k * 16);
  finish(scores);
  take_scores(softmax, scores, factor, kept);
  scale_sums(sums, kept);
  add_values<kD>(sums, scores, tile + kKeys * kTileStride<kD>, warp * 16);
}

// A warp's share of the keys of a row, in units of log2.
struct Share {
  float largest, total;
};

__device__ __forceinline__ void leave_share(Share (&shares)[kWarps][kRows], Softmax& softmax,
                                            float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  add_lanes(softmax);
  if (lane % 4 == 0)
    for (int half = 0; half < 2; ++half)
      shares[warp][lane / 4 + 8 * half] = {softmax.largest[half] * factor, softmax.total[half]};
}

// Puts the shares of warps together: weighted sums in shared memory, (kRows, kD).
template <int kD>
__device__ __forceinline__ void add_warps(float* sums, const float (&own)[kD / 8][4],
                                          const Share (&shares)[kWarps][kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  for (int active = 0; active < kWarps; ++active) {
    if (active == warp) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        float largest = -INFINITY;
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shares[w][row].largest);
        const float part =
            largest == -INFINITY ? 0.0f : exp2_fast(shares[warp][row].largest - largest);
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& sum = sums[row * kD + n * 8 + 2 * t + i];
            sum = (active == 0 ? 0.0f : sum) + own[n][2 * half + i] * part;
          }
      }
    }
    __syncthreads();
  }
}

// Writes what the block leaves of the first n_rows rows; part_of(row) is the number of a row's
// part.
template <int kD, typename PartOf>
__device__ __forceinline__ void write_parts(const KeyParts& parts, const float* sums,
                                            const Share (&shares)[kWarps][kRows], int head_dim,
                                            int n_rows, const PartOf& part_of) {
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * head_dim; i += kThreads) {
    const int row = i / head_dim, column = i % head_dim;
    parts.sums[part_of(row) * head_dim + column] = sums[row * kD + column];
  }
  if (threadIdx.x < n_rows) {
    const int row = static_cast<int>(threadIdx.x);
    float largest = -INFINITY, total = 0;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shares[w][row].largest);
    for (int w = 0; w < kWarps && largest != -INFINITY; ++w)
      total += shares[w][row].total * exp2_fast(shares[w][row].largest - largest);
    parts.largest[part_of(row)] = largest;
    parts.total[part_of(row)] = total;
  }
}

// The query rows and the share of the keys of a block: tiles [begin, end), far ones before near
// ones.
struct Block {
  int64_t kv_head, group;
  int64_t first_row, n_rows;  // of the tile; all rows of the key head
  SeenKeys seen;
  int64_t n_near, far_tiles, begin, end;

  __device__ __forceinline__ Block(const KeysView& view, int n_row_tiles)
      : kv_head(blockIdx.y / n_row_tiles),
        group(view.n_heads / view.n_kv_heads),
        first_row(blockIdx.y % n_row_tiles * kRows),
        n_rows(view.only.n * group),
        seen(keys_of(view, view.only, kv_head)) {
    n_near = seen.near_end > seen.near_begin ? seen.near_end - seen.near_begin : 0;
    far_tiles = (seen.n_far + kKeys - 1) / kKeys;
    const int64_t all_tiles = far_tiles + (n_near + kKeys - 1) / kKeys;
    begin = all_tiles * blockIdx.x / view.n_splits;
    end = all_tiles * (blockIdx.x + 1) / view.n_splits;
  }
};

// Rows g and g + 8 of the queries as the left operand, and their positions.
template <int kD>
__device__ __forceinline__ void load_queries(uint32_t (&query)[kD / 16][4], int64_t (&positions)[2],
                                             const KeysView& view, const Block& block) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  for (int half = 0; half < 2; ++half) {
    const int64_t mine = block.first_row + g + 8 * half;
    const bool exists = mine < block.n_rows;
    const int64_t r = exists ? mine : block.first_row, row = view.only.row + r / block.group;
    positions[half] = query_position(view, row);
    const auto* from = reinterpret_cast<const __nv_bfloat16*>(view.queries) +
                       row * view.query_stride +
                       (block.kv_head * block.group + r % block.group) * view.head_dim;
    load_query_row<kD>(query, half, exists ? from : nullptr, static_cast<int>(view.head_dim));
  }
}

// The rows that this thread copies of the next tile, and the bias of one.
template <int kD>
struct Coming {
  static constexpr int kChunks = kD / 8;
  static constexpr int kCopies = kKeys * kChunks / kThreads;  // of a thread, 16 bytes each
  int32_t rows[kCopies];
  float bias = 0;

  __device__ __forceinline__ void read_list(const Block& block, int64_t tile) {
    const bool far = tile < block.far_tiles;
    const int64_t first = (far ? tile : tile - block.far_tiles) * kKeys;
    const int64_t n_here = tile >= block.end ? 0 : far ? block.seen.n_far : block.n_near;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int64_t at = first + (static_cast<int>(threadIdx.x) + i * kThreads) / kChunks;
      rows[i] = at >= n_here ? kNoRow
                : far        ? block.seen.far_row(at)
                             : block.seen.near_row(block.seen.near_begin + at);
    }
    if (threadIdx.x < kKeys)
      bias = far && first + threadIdx.x < n_here ? block.seen.bias[first + threadIdx.x] : -INFINITY;
  }
  // Starts copying them; rows_of: of keys, and of values.
  __device__ __forceinline__ void start_copy(__nv_bfloat16* tile, const KeysView& view,
                                             const HeadRows (&rows_of)[2]) const {
    const auto head_dim = static_cast<int>(view.head_dim);
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int at = static_cast<int>(threadIdx.x) + i * kThreads;
        const int row = at / kChunks, column = at % kChunks * 8;
        const std::byte* from = rows_of[part].far(rows[i]);
        const bool exists = from != nullptr && column < head_dim;
        copy_async(tile + (part * kKeys + row) * kTileStride<kD> + column,
                   exists ? from + 2 * column : view.queries, exists);
      }
  }
};

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    keys_split(const __grid_constant__ KeysView view, KeyParts parts, int n_row_tiles) {
  constexpr int kTile = kKeys * kTileStride<kD>;
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  __shared__ float biases[kStages<kD>][kKeys];
  __shared__ Share shares[kWarps][kRows];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Block block(view, n_row_tiles);
  const HeadRows rows_of[2] = {head_rows(view, false, block.kv_head, 2),
                               head_rows(view, true, block.kv_head, 2)};
  uint32_t query[kD / 16][4];
  int64_t positions[2];
  load_queries<kD>(query, positions, view, block);

  Coming<kD> coming;
  const auto stage_of = [&](int64_t tile) {
    return static_cast<int>((tile - block.begin) % kStages<kD>);
  };
  // Nothing, but counted, behind the last tile.
  const auto start_copy = [&](int64_t tile) {
    const int stage = stage_of(tile);
    if (tile < block.end) {
      coming.start_copy(shared + 2 * stage * kTile, view, rows_of);
      if (threadIdx.x < kKeys) biases[stage][threadIdx.x] = coming.bias;
    }
    commit_copies();
    coming.read_list(block, tile + 1);
  };
  Softmax softmax;
  float own[kD / 8][4] = {};  // sums
  const float factor = view.scale * kLog2E;
  coming.read_list(block, block.begin);
  for (int i = 0; i < kStages<kD> - 1; ++i) start_copy(block.begin + i);
  for (int64_t tile = block.begin; tile < block.end; ++tile) {
    wait_copies<kStages<kD> - 2>();
    __syncthreads();
    start_copy(tile + kStages<kD> - 1);
    const int stage = stage_of(tile);
    const auto finish = [&](float(&scores)[2][4]) {
      if (tile < block.far_tiles) return add_bias(scores, biases[stage] + warp * 16);
      const int64_t first = block.seen.near_begin + (tile - block.far_tiles) * kKeys + warp * 16;
      mask_near(scores, first, block.seen.near_end, view.causal, positions);
    };
    attend_tile<kD>(softmax, own, query, shared + 2 * stage * kTile, factor, finish);
  }

  leave_share(shares, softmax, factor);
  wait_copies<0>();
  __syncthreads();  // the tiles are free too
  auto* sums = reinterpret_cast<float*>(shared);
  add_warps<kD>(sums, own, shares);
  const auto n_rows = static_cast<int>(min(block.n_rows - block.first_row, int64_t{kRows}));
  write_parts<kD>(parts, sums, shares, static_cast<int>(view.head_dim), n_rows, [&](int row) {
    return KeyParts::at(view, 0, block.kv_head, block.first_row + row, blockIdx.x);
  });
}

// Blocks that the device holds at one time.
template <int kD>
int64_t resident_blocks(Context& context) {
  static const int per_multiprocessor = [] {
    check(cudaFuncSetAttribute(keys_split<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kBytes<kD>),
          "attention's shared memory");
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, keys_split<kD>, kThreads,
                                                        kBytes<kD>),
          "attention's occupancy");
    return blocks;
  }();
  return int64_t{per_multiprocessor} * context.multiprocessors();
}

template <int kD>
void launch(const std::shared_ptr<Context>& context, KeysView view) {
  const int64_t group = view.n_heads / view.n_kv_heads;
  const int64_t n_row_tiles = ceil_div(view.only.n * group, kRows);
  // As many as there is room for at one time, unless that leaves less than a few tiles to each.
  const int64_t most_blocks = view.n_kv_heads * ceil_div(view.n_few * group, kRows);
  const int64_t most = std::max<int64_t>(ceil_div(view.most_keys, 4 * kKeys), 1);
  view.n_splits = std::clamp<int64_t>(resident_blocks<kD>(*context) / most_blocks, 1, most);
  DeviceArray<float> memory;
  const KeyParts parts = make_parts(context, view, memory);
  const dim3 grid(static_cast<unsigned>(view.n_splits),
                  static_cast<unsigned>(view.n_kv_heads * n_row_tiles));
  keys_split<kD><<<grid, kThreads, kBytes<kD>, context->stream()>>>(view, parts,
                                                                    static_cast<int>(n_row_tiles));
  check_launch("keys_split");
  put_keys_together(*context, view, parts);
}

}  // namespace

void attend_keys_split(const std::shared_ptr<Context>& context, KeysView view) {
  SLUICE_CHECK(view.n_tiles == 1 && view.n_few > 0 && view.head_dim <= kMostSplitDim);
  if (view.head_dim <= 64) return launch<64>(context, view);
  launch<128>(context, view);
}

}  // namespace sluice::impl::cuda
