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

// A warp's share of the keys of a row, in units of log2.
struct Share {
  float largest, total;
};

// Puts the shares of warps together: weighted sums in shared memory, (kRows, kD).
template <int kD>
__device__ void add_warps(float* sums, const float (&own)[kD / 8][4],
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

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    keys_split(const __grid_constant__ KeysView view, KeyParts parts, int n_row_tiles) {
  constexpr int kTile = kKeys * kTileStride<kD>, kChunks = kD / 8;
  constexpr int kCopies = kKeys * kChunks / kThreads;  // of a thread, 16 bytes each
  extern __shared__ __align__(16) __nv_bfloat16 shared[];
  __shared__ float biases[kStages<kD>][kKeys];
  __shared__ Share shares[kWarps][kRows];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const auto head_dim = static_cast<int>(view.head_dim);
  const int64_t kv_head = blockIdx.y / n_row_tiles, r0 = blockIdx.y % n_row_tiles * kRows;
  const int64_t group = view.n_heads / view.n_kv_heads, n_rows = view.only.n * group;
  const SeenKeys seen = keys_of(view, view.only, kv_head);
  const HeadRows rows_of[2] = {head_rows(view, false, kv_head, 2),
                               head_rows(view, true, kv_head, 2)};

  uint32_t query[kD / 16][4];
  int64_t positions[2];
  for (int half = 0; half < 2; ++half) {
    const bool exists = r0 + g + 8 * half < n_rows;
    const int64_t r = exists ? r0 + g + 8 * half : r0, row = view.only.row + r / group;
    positions[half] = query_position(view, row);
    const auto* from = reinterpret_cast<const __nv_bfloat16*>(view.queries) +
                       row * view.query_stride + (kv_head * group + r % group) * view.head_dim;
#pragma unroll
    for (int k = 0; k < kD / 16; ++k)
#pragma unroll
      for (int k_half = 0; k_half < 2; ++k_half) {
        const int column = k * 16 + k_half * 8 + 2 * t;
        query[k][half + 2 * k_half] =
            exists && column < head_dim ? *reinterpret_cast<const uint32_t*>(from + column) : 0;
      }
  }

  // This block's share of the tiles, far ones before near ones.
  const int64_t n_near = seen.near_end > seen.near_begin ? seen.near_end - seen.near_begin : 0;
  const int64_t far_tiles = (seen.n_far + kKeys - 1) / kKeys;
  const int64_t all_tiles = far_tiles + (n_near + kKeys - 1) / kKeys;
  const int64_t begin = all_tiles * blockIdx.x / view.n_splits;
  const int64_t end = all_tiles * (blockIdx.x + 1) / view.n_splits;
  // The rows that this thread copies of the next tile, and the bias of one.
  int32_t coming[kCopies];
  float bias = 0;
  const auto read_list = [&](int64_t tile) {
    const bool far = tile < far_tiles;
    const int64_t first = (far ? tile : tile - far_tiles) * kKeys;
    const int64_t n_here = tile >= end ? 0 : far ? seen.n_far : n_near;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int64_t at = first + (static_cast<int>(threadIdx.x) + i * kThreads) / kChunks;
      coming[i] = at >= n_here ? kNoRow
                  : far        ? seen.far_row(at)
                               : seen.near_row(seen.near_begin + at);
    }
    if (threadIdx.x < kKeys)
      bias = far && first + threadIdx.x < n_here ? seen.bias[first + threadIdx.x] : -INFINITY;
  };
  // Nothing, but counted, behind the last tile.
  const auto start_copy = [&](int64_t tile) {
    const auto stage = static_cast<int>((tile - begin) % kStages<kD>);
    __nv_bfloat16* to = shared + 2 * stage * kTile;
    if (tile < end) {
#pragma unroll
      for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          const int at = static_cast<int>(threadIdx.x) + i * kThreads;
          const int row = at / kChunks, column = at % kChunks * 8;
          const std::byte* from = rows_of[part].far(coming[i]);
          const bool exists = from != nullptr && column < head_dim;
          copy_async(to + part * kTile + row * kTileStride<kD> + column,
                     exists ? from + 2 * column : view.queries, exists);
        }
      if (threadIdx.x < kKeys) biases[stage][threadIdx.x] = bias;
    }
    commit_copies();
    read_list(tile + 1);
  };

  Softmax softmax;
  float own[kD / 8][4] = {};  // sums
  const float factor = view.scale * kLog2E;
  read_list(begin);
  for (int i = 0; i < kStages<kD> - 1; ++i) start_copy(begin + i);
  for (int64_t tile = begin; tile < end; ++tile) {
    wait_copies<kStages<kD> - 2>();
    __syncthreads();
    start_copy(tile + kStages<kD> - 1);
    const auto stage = static_cast<int>((tile - begin) % kStages<kD>);
    const __nv_bfloat16* keys = shared + 2 * stage * kTile;
    float scores[2][4] = {};
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) add_scores<kD>(scores, query[k], keys, warp * 16, k * 16);
    if (tile < far_tiles)
      add_bias(scores, biases[stage] + warp * 16);
    else
      mask_near(scores, seen.near_begin + (tile - far_tiles) * kKeys + warp * 16, seen.near_end,
                view.causal, positions);
    float kept[2];
    take_scores(softmax, scores, factor, kept);
    scale_sums(own, kept);
    add_values<kD>(own, scores, keys + kTile, warp * 16);
  }

  add_lanes(softmax);
  if (t == 0)
    for (int half = 0; half < 2; ++half)
      shares[warp][g + 8 * half] = {softmax.largest[half] * factor, softmax.total[half]};
  wait_copies<0>();
  __syncthreads();  // the tiles are free too
  auto* sums = reinterpret_cast<float*>(shared);
  add_warps<kD>(sums, own, shares);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * head_dim; i += kThreads) {
    const int row = i / head_dim, column = i % head_dim;
    if (r0 + row >= n_rows) break;
    const int64_t at = KeyParts::at(view, 0, kv_head, r0 + row, blockIdx.x);
    parts.sums[at * head_dim + column] = sums[row * kD + column];
  }
  if (threadIdx.x < kRows && r0 + threadIdx.x < n_rows) {
    const int row = static_cast<int>(threadIdx.x);
    float largest = -INFINITY, total = 0;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shares[w][row].largest);
    for (int w = 0; w < kWarps && largest != -INFINITY; ++w)
      total += shares[w][row].total * exp2_fast(shares[w][row].largest - largest);
    const int64_t at = KeyParts::at(view, 0, kv_head, r0 + row, blockIdx.x);
    parts.largest[at] = largest;
    parts.total[at] = total;
  }
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
