// select_gram.cu on Hopper's matrix units: tiles of 128 rows and 256 columns, 64 rows to a
// warpgroup, fed by the copy engine, which is a few steps ahead and goes on while a tile is
// reduced. Compiled for compute capability 9.0 alone.

#include <algorithm>

#include "backend/cuda/gram_reduce.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/wgmma.cuh"

namespace sluice::cuda {
namespace {

constexpr int kRows = 128, kColumns = kHopperGramColumns, kDepth = 64, kStages = 4;
static_assert(kColumns == 256);
constexpr int kThreads = 3 * 128, kWarps = 8;  // that multiply
constexpr int kRowBytes = 2 * kDepth, kEightRows = 8 * kRowBytes;
constexpr int kRowTile = kRows * kRowBytes, kColumnTile = kColumns * kRowBytes;
constexpr int kStageBytes = kRowTile + kColumnTile;
constexpr int kBytes = kStages * kStageBytes + 1024;  // for alignment

struct Barriers {
  uint64_t here[kStages], used[kStages];
};
struct Maps {
  CUtensorMap rows, local, columns;
};

// A tile: of the chunk with itself, or with kept columns.
struct Item {
  bool local;
  int64_t row_tile, column_tile;
};
struct Items {
  int64_t row_tiles, n_local, n;
};
__device__ Items items_of(const ChunkView& view) {
  Items items;
  items.row_tiles = (view.n + kRows - 1) / kRows;
  const int64_t half = items.row_tiles / 2;  // row tiles 2i and 2i + 1 have i + 1 column tiles
  items.n_local = half * (half + 1) + (items.row_tiles % 2) * (half + 1);
  const int64_t n_columns = *view.n_columns;
  items.n = items.n_local + items.row_tiles * ((n_columns + kColumns - 1) / kColumns);
  return items;
}
__device__ Item item_at(const Items& items, int64_t i) {
  if (i >= items.n_local)
    return {false, (i - items.n_local) % items.row_tiles, (i - items.n_local) / items.row_tiles};
  int64_t row_tile = 0;
  while (i > row_tile / 2) i -= row_tile++ / 2 + 1;
  return {true, row_tile, i};
}

__device__ void bring(const ChunkView& view, const Maps& maps, const Items& items,
                      unsigned char* memory, Barriers& barriers) {
  const int steps = static_cast<int>(view.padded / kDepth);
  int64_t count = 0;
  for (int64_t i = blockIdx.x; i < items.n; i += gridDim.x) {
    const Item item = item_at(items, i);
    const CUtensorMap& columns = item.local ? maps.local : maps.columns;
    for (int step = 0; step < steps; ++step, ++count) {
      const auto stage = static_cast<int>(count % kStages);
      wait_barrier(&barriers.used[stage], static_cast<uint32_t>(count / kStages & 1) ^ 1);
      arrive_and_expect(&barriers.here[stage], kStageBytes);
      unsigned char* to = memory + stage * kStageBytes;
      copy_box(to, &maps.rows, step * kDepth, static_cast<int>(item.row_tile) * kRows, 0,
               &barriers.here[stage]);
      copy_box(to + kRowTile, &columns, step * kDepth,
               static_cast<int>(item.column_tile) * kColumns, 0, &barriers.here[stage]);
    }
  }
}

using Sums = float[2][16][4];  // two halves of the columns

// Whose columns count: for an owner, and for what decides a plain token or an inherited one.
constexpr int kMasks = 3;
struct Scales {
  float of[kMasks][kColumns];  // 1 / norm, NaN for columns that do not count
};

// The warps that multiply wait for each other.
__device__ void sync_multipliers() {
  asm volatile("bar.sync 2, %0;\n" ::"n"(32 * kWarps) : "memory");
}

__device__ void fill_scales(const ChunkView& view, int set, int64_t first, Scales& scales) {
  sync_multipliers();  // the last ones are read
  const int c = static_cast<int>(threadIdx.x) - 128;
  const bool exists = first + c < *view.n_columns;
  const uint8_t flags = exists ? view.flags[set * view.capacity + first + c] : uint8_t{0};
  const float scale = exists ? view.column_scale[first + c] : 0.0f;
  const uint8_t masks[kMasks] = {kIsRep, view.rule.deciding(false), view.rule.deciding(true)};
#pragma unroll
  for (int i = 0; i < kMasks; ++i) scales.of[i][c] = (flags & masks[i]) != 0 ? scale : NAN;
  sync_multipliers();
}

// The largest of a lane's columns; `scales` and `first` begin at the first of them.
template <bool kAbsolute>
__device__ Largest largest_of(const Sums& sums, int half, const float* scales, int first) {
  Largest best = none_yet();
#pragma unroll
  for (int part = 0; part < 2; ++part)
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const int c = part * 128 + n * 8;
      const float2 scale = *reinterpret_cast<const float2*>(scales + c);
      const float x = sums[part][n][2 * half] * scale.x, y = sums[part][n][2 * half + 1] * scale.y;
      insert(best, kAbsolute ? fabsf(x) : x, first + c);
      insert(best, kAbsolute ? fabsf(y) : y, first + c + 1);
    }
  return best;
}

__device__ void reduce(const ChunkView& view, const Sums& sums, const Item& item, int row,
                       Scales& scales) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int first = static_cast<int>(item.column_tile) * kColumns;
  for (int set = 0; set < view.n_sets; ++set) {
    if (view.thresholds[set] <= 0) continue;
    fill_scales(view, set, first, scales);
    for (int decides = 0; decides < 2; ++decides) {
      if (!is_question(view, set, decides == 1)) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t at = row + 8 * half;
        const Question question = question_of(view, set, decides == 1, at);
        Largest best = none_yet();
        if (question.asked) {
          const bool inherited = view.inherited[set * view.n + at] != 0;
          const float* mine = scales.of[decides == 0 ? 0 : inherited ? 2 : 1] + 2 * t;
          best = question.absolute ? largest_of<true>(sums, half, mine, first + 2 * t)
                                   : largest_of<false>(sums, half, mine, first + 2 * t);
          // A row of zeros has only zeros.
          const float scale = question.scale > 0 ? question.scale : 1.0f;
          best.first *= scale;
          best.second *= scale;
          best.third *= scale;
        }
        merge_lanes(best);
        if (t == 0 && at < view.n)
          view.largest[((int64_t{set} * 2 + decides) * view.n_splits + item.column_tile) * view.n +
                       at] = best;
      }
    }
  }
}

__device__ void write_local(const ChunkView& view, const Sums& sums, const Item& item, int row) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int first = static_cast<int>(item.column_tile) * kColumns + 2 * t;
  const int n_left = static_cast<int>(view.n) - first;
  const float* scales = view.scale + first;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= view.n) continue;
    const float scale = view.scale[row + 8 * half];
    float* to = view.local + int64_t{row + 8 * half} * kChunk + first;
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int n = 0; n < 16; ++n)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int c = part * 128 + n * 8 + k;
          if (c < n_left) to[c] = sums[part][n][2 * half + k] * scale * scales[c];
        }
  }
}

__device__ void multiply(const ChunkView& view, const Items& items, uint32_t memory,
                         Barriers& barriers, Scales& scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // of warps
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;    // of those that multiply
  const int steps = static_cast<int>(view.padded / kDepth);
  int64_t count = 0;
  for (int64_t i = blockIdx.x; i < items.n; i += gridDim.x) {
    const Item item = item_at(items, i);
    Sums sums;
    for (int step = 0; step < steps; ++step, ++count) {
      const auto stage = static_cast<int>(count % kStages);
      wait_barrier(&barriers.here[stage], static_cast<uint32_t>(count / kStages & 1));
      const uint32_t rows = memory + stage * kStageBytes + group * 64 * kRowBytes;
      const uint32_t columns = memory + stage * kStageBytes + kRowTile;
      begin_products();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k)
#pragma unroll
        for (int part = 0; part < 2; ++part)
          multiply_shared(sums[part], operand_at(rows + k * 32, 16, kEightRows),
                          operand_at(columns + part * 128 * kRowBytes + k * 32, 16, kEightRows),
                          step > 0 || k > 0);
      commit_products();
      // The step before is done when this one is the only one under way.
      wait_products<1>();
      if (step > 0 && lane == 0) arrive(&barriers.used[(count - 1) % kStages]);
    }
    wait_products<0>();
    hold(sums[0]);
    hold(sums[1]);
    if (lane == 0) arrive(&barriers.used[(count - 1) % kStages]);
    const int row = static_cast<int>(item.row_tile) * kRows + warp * 16 + lane / 4;
    if (item.local)
      write_local(view, sums, item, row);
    else
      reduce(view, sums, item, row, scales);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    chunk_gram_hopper(const __grid_constant__ ChunkView view, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char dynamic[];
  __shared__ Barriers barriers;
  __shared__ __align__(8) Scales scales;
  const uint32_t offset = (1024 - shared_address(dynamic) % 1024) % 1024;
  const Items items = items_of(view);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(&barriers.here[stage], 1);
      make_barrier(&barriers.used[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) bring(view, maps, items, dynamic + offset, barriers);
  } else {
    take_registers<232>();
    multiply(view, items, shared_address(dynamic) + offset, barriers, scales);
  }
}

}  // namespace

void multiply_chunk_hopper(Context& context, const ChunkView& view) {
  SLUICE_CHECK(view.n <= kChunk && view.tile_columns == kColumns);
  const auto map = [&](const uint16_t* rows, int64_t n, int box) {
    return make_map({rows, {view.padded, n, 1}, {2 * view.padded, 2 * view.padded * n}, {box, 1}});
  };
  const Maps maps{map(view.rows, view.n, kRows), map(view.rows, view.n, kColumns),
                  map(view.columns, view.capacity, kColumns)};
  check(
      cudaFuncSetAttribute(chunk_gram_hopper, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "shared memory of chunk_gram_hopper");
  chunk_gram_hopper<<<static_cast<unsigned>(context.multiprocessors()), kThreads, kBytes,
                      context.stream()>>>(view, maps);
  check_launch("chunk_gram_hopper");
}

}  // namespace sluice::cuda
