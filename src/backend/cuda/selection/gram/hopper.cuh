// Tiles of 128 rows and 256 columns on Hopper's tensor cores, 64 rows to a warpgroup, fed by TMA
// copies that are a few steps ahead and go on while a tile is reduced. Two blocks work side
// by side, one tile of rows above the other, and fetch half of the columns each, for both: L2 could
// not feed them one by one. For files compiled for compute capability 9.0 alone.
//
// `Work` says which items there are, pairs of tiles, and what becomes of them:
//   int n_items()
//   Tile at(int i): this block's; i grows from call to call
//   void begin(const Tile&): by all warps that multiply, before they do; asks for what take reads
//   void take(const Tile&, const Products&, int row): by all warps that multiply; row: a lane's
//     first within the tile
//   GramParts parts(): memory for parts of items

#pragma once

#include <initializer_list>

#include "backend/cuda/primitives/wgmma.cuh"
#include "backend/cuda/runtime/tensor_map.h"
#include "backend/cuda/selection/common/kernels.h"

namespace sluice::impl::cuda::selection::gram {

constexpr int kRows = 128, kColumns = kHopperGramColumns, kDepth = 64, kStages = 4;
static_assert(kColumns == 256);
constexpr int kThreads = 3 * 128, kWarps = 8;  // that multiply
constexpr int kBlocks = 2;                     // side by side
constexpr int kRowBytes = 2 * kDepth, kEightRows = 8 * kRowBytes;
constexpr int kBoxBytes = 128 * kRowBytes;  // 128 rows; a tile has one box of rows, two of columns
constexpr int kStageBytes = 3 * kBoxBytes;
constexpr int kBytes = kStages * kStageBytes + 1024;  // for alignment

struct Tile {
  const CUtensorMap *rows, *columns;
  int row, column;  // the first, in the maps
  bool half;        // only the first 128 columns are wanted
  int number;       // of the column tile, and what else `Work` wants to know
  int kind;
};

// Of 64 rows: columns 8 n + 2 t and 8 n + 2 t + 1 of two rows in c[n], as in primitives/mma.cuh.
using Sums = float[32][4];
// Those of the first 128 columns.
__device__ inline float (&first_half(Sums& sums))[16][4] {
  return reinterpret_cast<float(&)[16][4]>(sums);
}

struct Barriers {
  uint64_t here[kStages], used[kStages];
  int last_part;
};

// Which of the blocks side by side this one is.
__device__ inline int my_rank() { return static_cast<int>(blockIdx.x) % kBlocks; }

// All threads of the blocks side by side wait for each other.
__device__ inline void sync_blocks() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}

// copy_box to the same place in all of them, counting at each one's barrier.
__device__ inline void copy_box_to_all(void* to, const CUtensorMap* map, int x, int y,
                                       uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;\n" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(0), "r"(shared_address(barrier)),
      "h"(static_cast<uint16_t>((1 << kBlocks) - 1))
      : "memory");
}

// Arrives at the barrier of block `rank`.
__device__ inline void arrive_at(uint64_t* barrier, int rank) {
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// Work of one cluster of kBlocks blocks: an item, or a part of its depth (split-K). Clusters take
// whole items in rounds. When fewer items than clusters are left, each is split among several.
struct WorkUnit {
  int item;
  int begin, end;   // steps of kDepth
  int part, parts;  // of the item
  int left;         // number among the items that are divided
};
constexpr int kMostParts = 4;  // each costs as much as a few steps

// False when there is none left. Rounds count from 0.
__device__ inline bool work_unit_at(int n_items, int round, int steps, bool divides,
                                    WorkUnit& unit) {
  const int blocks = static_cast<int>(gridDim.x) / kBlocks;
  const int block = static_cast<int>(blockIdx.x) / kBlocks;
  const int whole = n_items / blocks * blocks, item = block + round * blocks;
  unit = {item, 0, steps, 0, 1, 0};
  if (item < whole) return true;
  const int n_left = n_items - whole;
  if (item >= whole + blocks || n_left == 0) return false;
  unit.parts = divides ? min(min(kMostParts, steps), blocks / n_left) : 1;
  if (block >= n_left * unit.parts) return false;
  unit.left = block % n_left;
  unit.part = block / n_left;
  unit.item = whole + unit.left;
  unit.begin = steps * unit.part / unit.parts;
  unit.end = steps * (unit.part + 1) / unit.parts;
  return true;
}

// The warps that multiply wait for each other.
__device__ inline void sync_multipliers() {
  asm volatile("bar.sync 2, %0;\n" ::"n"(32 * kWarps) : "memory");
}

template <typename Work>
__device__ void bring(Work& work, int steps, unsigned char* memory, Barriers& barriers) {
  int count = 0;
  WorkUnit unit;
  for (int round = 0;
       work_unit_at(work.n_items(), round, steps, work.parts().sums != nullptr, unit); ++round) {
    const Tile tile = work.at(unit.item);
    for (int step = unit.begin; step < unit.end; ++step, ++count) {
      const int stage = count % kStages;
      uint64_t* here = &barriers.here[stage];
      wait_barrier(&barriers.used[stage], static_cast<uint32_t>(count / kStages & 1) ^ 1);
      arrive_and_expect(here, tile.half ? 2 * kBoxBytes : 3 * kBoxBytes);
      unsigned char* to = memory + stage * kStageBytes;
      copy_box(to, tile.rows, step * kDepth, tile.row, 0, here);
      const int box = my_rank();
      if (box == 0 || !tile.half)
        copy_box_to_all(to + (1 + box) * kBoxBytes, tile.columns, step * kDepth,
                        tile.column + 128 * box, here);
    }
  }
}

template <bool kHalf>
__device__ void multiply_tile(Sums& sums, const WorkUnit& unit, int& count, uint32_t memory,
                              Barriers& barriers) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // of warps
#pragma unroll 1
  for (int step = unit.begin; step < unit.end; ++step, ++count) {
    const int stage = count % kStages;
    wait_barrier(&barriers.here[stage], static_cast<uint32_t>(count / kStages & 1));
    const uint32_t rows = memory + stage * kStageBytes + group * 64 * kRowBytes;
    const uint32_t columns = memory + stage * kStageBytes + kBoxBytes;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      const uint64_t a = operand_at(rows + k * 32, 16, kEightRows);
      const uint64_t b = operand_at(columns + k * 32, 16, kEightRows);
      if constexpr (kHalf)
        multiply_shared(first_half(sums), a, b, step > unit.begin || k > 0);
      else
        multiply_shared(sums, a, b, step > unit.begin || k > 0);
    }
    wgmma_commit();
    // The step before is done when this one is the only one pending.
    wgmma_wait<1>();
    if (step > unit.begin && lane < kBlocks) arrive_at(&barriers.used[(count - 1) % kStages], lane);
  }
  wgmma_wait<0>();
  hold(sums);
  if (lane < kBlocks) arrive_at(&barriers.used[(count - 1) % kStages], lane);
}

// Products of a lane: columns 8 n + 2 t and 8 n + 2 t + 1, of its first row, then of the row eight
// below. Those of a divided item are read where its parts lie: the registers that they came from
// are the tensor core's own.
struct InRegisters {
  static constexpr int kTogether = 4;  // n for which scales are held in registers too
  const Sums& sums;
  __device__ float4 operator()(int n) const {
    return make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
  }
};
struct InParts {
  static constexpr int kTogether = 8;  // the registers of sums are free
  const float4* first;
  int parts, n_tiles;
  __device__ float4 operator()(int n) const {
    float4 of[kMostParts];  // loads in flight together
#pragma unroll
    for (int part = 0; part < kMostParts; ++part)
      of[part] = part < parts && n < n_tiles ? __ldcg(first + part * kPartSums + n * 256)
                                             : make_float4(0, 0, 0, 0);
    float4 sum = of[0];
#pragma unroll
    for (int part = 1; part < kMostParts; ++part)
      sum = make_float4(sum.x + of[part].x, sum.y + of[part].y, sum.z + of[part].z,
                        sum.w + of[part].w);
    return sum;
  }
};

// Stores a part of an item. Returns whether all parts are stored.
__device__ inline bool put_part(const Sums& sums, const WorkUnit& unit, int n_tiles, float4* first,
                                int32_t* arrived, Barriers& barriers) {
  float4* mine = first + unit.part * kPartSums;
#pragma unroll
  for (int n = 0; n < 32; ++n)
    if (n < n_tiles)
      __stcg(mine + n * 256, make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]));
  __threadfence();
  sync_multipliers();
  if (threadIdx.x == 128) {
    barriers.last_part = atomicAdd(arrived, 1) == unit.parts - 1 ? 1 : 0;
    if (barriers.last_part != 0) *arrived = 0;  // for the next time
    __threadfence();
  }
  sync_multipliers();
  return barriers.last_part != 0;
}

template <typename Work>
__device__ void multiply(Work& work, int steps, uint32_t memory, Barriers& barriers) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;  // of those that multiply
  int count = 0;
  WorkUnit unit;
  for (int round = 0;
       work_unit_at(work.n_items(), round, steps, work.parts().sums != nullptr, unit); ++round) {
    const Tile tile = work.at(unit.item);
    work.begin(tile);
    Sums sums;
    if (tile.half)
      multiply_tile<true>(sums, unit, count, memory, barriers);
    else
      multiply_tile<false>(sums, unit, count, memory, barriers);
    const int row = warp * 16 + lane / 4;
    if (unit.parts == 1) {
      work.take(tile, InRegisters{sums}, row);
    } else {
      const GramParts& parts = work.parts();
      const int mine = unit.left * kBlocks + my_rank();
      float4* first = parts.sums + int64_t{mine} * unit.parts * kPartSums + (threadIdx.x - 128);
      const int n_tiles = tile.half ? 16 : 32;
      if (put_part(sums, unit, n_tiles, first, parts.arrived + mine, barriers))
        work.take(tile, InParts{first, unit.parts, n_tiles}, row);
    }
  }
}

// What can be done before anything is read.
__device__ inline void prepare(Barriers& barriers, std::initializer_list<const CUtensorMap*> maps) {
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : maps)
      asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(&barriers.here[stage], 1);
      make_barrier(&barriers.used[stage], kBlocks * kWarps);
    }
    publish_barriers();
  }
  sync_blocks();
}

// What a block of kThreads does, in a cluster of kBlocks, when it is prepared; `dynamic`: kBytes of
// shared memory.
template <typename Work>
__device__ void run(Work& work, int64_t padded, unsigned char* dynamic, Barriers& barriers) {
  const uint32_t offset = (1024 - shared_address(dynamic) % 1024) % 1024;
  const int steps = static_cast<int>(padded / kDepth);
  // Nobody leaves while the other block may still write to it.
  if (threadIdx.x < 128) {
    decrease_registers<40>();
    if (threadIdx.x == 0) bring(work, steps, dynamic + offset, barriers);
    sync_blocks();
  } else {
    increase_registers<232>();
    multiply(work, steps, shared_address(dynamic) + offset, barriers);
    sync_blocks();
  }
}

inline unsigned grid_size(const Context& context) {
  return static_cast<unsigned>(context.multiprocessors() / kBlocks * kBlocks);
}

// Rows for TMA, in boxes of 128.
inline CUtensorMap row_map(const uint16_t* rows, int64_t n, int64_t width, int64_t stride) {
  return make_map({rows, {width, n, 1}, {2 * stride, 2 * stride * n}, {128, 1}});
}

}  // namespace sluice::impl::cuda::selection::gram
