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

// Columns of a lane: 8 n and one more, counted from its first; place(n, k) in the products.
template <typename Visit>
__device__ void for_columns(const Sums& sums, int half, const Visit& visit) {
#pragma unroll
  for (int part = 0; part < 2; ++part)
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int k = 0; k < 2; ++k) visit(part * 128 + n * 8 + k, sums[part][n][2 * half + k]);
}

__device__ void reduce(const ChunkView& view, const Sums& sums, const Item& item, int row) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int first = static_cast<int>(item.column_tile) * kColumns + 2 * t;
  const int n_left = *view.n_columns - first;
  const float* scales = view.column_scale + first;
  for (int set = 0; set < view.n_sets; ++set)
    for (int decides = 0; decides < 2; ++decides) {
      if (!is_question(view, set, decides == 1)) continue;
      const uint8_t* flags = view.flags + set * view.capacity + first;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Question question = question_of(view, set, decides == 1, row + 8 * half);
        Largest best = none_yet();
        if (question.asked)
          for_columns(sums, half, [&](int c, float product) {
            if (c >= n_left || (flags[c] & question.mask) == 0) return;
            const float cosine = product * question.scale * scales[c];
            insert(best, question.absolute ? fabsf(cosine) : cosine, first + c);
          });
        merge_lanes(best);
        if (t == 0 && row + 8 * half < view.n)
          view.largest[((int64_t{set} * 2 + decides) * view.n_splits + item.column_tile) * view.n +
                       row + 8 * half] = best;
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
    for_columns(sums, half, [&](int c, float product) {
      if (c < n_left) to[c] = product * scale * scales[c];
    });
  }
}

__device__ void multiply(const ChunkView& view, const Items& items, uint32_t memory,
                         Barriers& barriers) {
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
      reduce(view, sums, item, row);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    chunk_gram_hopper(const __grid_constant__ ChunkView view, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char dynamic[];
  __shared__ Barriers barriers;
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
    multiply(view, items, shared_address(dynamic) + offset, barriers);
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
