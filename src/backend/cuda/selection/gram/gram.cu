// Cosines of a chunk's rows, on the tensor cores: with all kept columns, reduced to the largest of
// each row before they leave the registers, and with the chunk itself, written out.

#include "backend/cuda/primitives/mma.cuh"
#include "backend/cuda/selection/gram/reduce.cuh"

namespace sluice::impl::cuda::selection {
namespace {

constexpr int kTile = kGramTile, kDepth = 64, kStages = 3;
constexpr int kThreads = 128;  // four warps, 64 x 64 each
constexpr int kStageElements = kTile * kDepth;
constexpr int kSharedBytes =
    kStages * 2 * kStageElements * 2 + kTile * 4 + 2 * kTile * static_cast<int>(sizeof(Largest));

using Accumulators = float[4][8][4];

// Rows of 64 numbers, 8 to a 16-byte piece; pieces are moved about within a row so that 8 rows of
// one column lie in different banks.
__device__ int place(int row, int piece) { return row * kDepth + ((piece ^ (row & 7)) * 8); }

// Rows [first, first + kTile) of a matrix of n rows, columns [depth, depth + kDepth).
__device__ void load_tile(uint16_t* to, const uint16_t* from, int64_t first, int64_t n,
                          int64_t padded, int64_t depth) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * 8; i += kThreads) {
    const int row = i / 8, piece = i % 8;
    const bool exists = first + row < n;
    const int64_t at = (exists ? first + row : 0) * padded + depth + piece * 8;
    copy_async(to + place(row, piece), from + at, exists);
  }
}

struct Operand {
  const uint16_t* rows;
  int64_t first, n;
};

__device__ void multiply_tile(const Operand& a, const Operand& b, int64_t padded, uint16_t* shared,
                              Accumulators& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = (warp / 2) * 64, column0 = (warp % 2) * 64;
  for (auto& tiles : sums)
    for (auto& tile : tiles)
      for (float& x : tile) x = 0;
  const int steps = static_cast<int>(padded / kDepth);
  const auto load = [&](int step) {
    if (step < steps) {
      uint16_t* stage = shared + (step % kStages) * 2 * kStageElements;
      load_tile(stage, a.rows, a.first, a.n, padded, int64_t{step} * kDepth);
      load_tile(stage + kStageElements, b.rows, b.first, b.n, padded, int64_t{step} * kDepth);
    }
    commit_copies();
  };
  for (int step = 0; step < kStages - 1; ++step) load(step);
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the stage is there, and the one before is read
    load(step + kStages - 1);
    const uint16_t* rows = shared + (step % kStages) * 2 * kStageElements;
    const uint16_t* columns = rows + kStageElements;
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      uint32_t x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_matrices(x[i], rows + place(row0 + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t y[4];
        load_matrices(y, columns + place(column0 + j * 16 + (lane / 16) * 8 + lane % 8,
                                         k * 2 + (lane / 8) % 2));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          mma_bf16(sums[i][2 * j], x[i], y[0], y[1]);
          mma_bf16(sums[i][2 * j + 1], x[i], y[2], y[3]);
        }
      }
    }
  }
  wait_copies<0>();
  __syncthreads();  // shared memory is free again
}

// Reduces a tile for one set and one question: the owner, or what decides. `found`: (2, kTile), of
// the warps' two halves of the columns.
__device__ void reduce_tile(const ChunkView& view, const Accumulators& sums, int set, bool decides,
                            int64_t first_row, int64_t first_column, int64_t n_columns,
                            const float* scales, Largest* found) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = (warp / 2) * 64, column0 = (warp % 2) * 64;
  const uint8_t* flags = view.kept.flags + set * view.kept.capacity;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + i * 16 + half * 8 + lane / 4;
      const Question question = question_of(view, set, decides, first_row + row);
      Largest best = none_yet();
      if (question.asked) {
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const int column = column0 + j * 8 + (lane % 4) * 2 + k;
            const int64_t c = first_column + column;
            if (c >= n_columns || (flags[c] & question.mask) == 0) continue;
            const float cosine = sums[i][j][half * 2 + k] * question.scale * scales[column];
            insert(best, question.absolute ? fabsf(cosine) : cosine, static_cast<int32_t>(c));
          }
      }
      merge_lanes(best);
      if (lane % 4 == 0) found[(warp % 2) * kTile + row] = best;
    }
}

__device__ void cross_tiles(const ChunkView& view, int64_t row_tile, int split, uint16_t* shared) {
  auto* scales = reinterpret_cast<float*>(shared + kStages * 2 * kStageElements);
  auto* found = reinterpret_cast<Largest*>(scales + kTile);
  const int64_t n_columns = *view.kept.n, first_row = row_tile * kTile;
  const int64_t n_tiles = (n_columns + kTile - 1) / kTile;
  const int64_t t = first_row + threadIdx.x;
  const auto result = [&](int set, int question) -> Largest& {
    return view.scratch
        .largest[((int64_t{set} * 2 + question) * view.n_splits + split) * view.n + t];
  };
  if (t < view.n)
    for (int set = 0; set < view.n_sets; ++set)
      for (int question = 0; question < 2; ++question) result(set, question) = none_yet();
  for (int64_t tile = split; tile < n_tiles; tile += view.n_splits) {
    const int64_t first_column = tile * kTile;
    if (first_column + threadIdx.x < n_columns)
      scales[threadIdx.x] = view.kept.scale[first_column + threadIdx.x];
    Accumulators sums;
    multiply_tile({view.rows.prepared, first_row, view.n},
                  {view.kept.prepared, first_column, n_columns}, view.padded, shared, sums);
    for (int set = 0; set < view.n_sets; ++set) {
      for (int question = 0; question < 2; ++question) {
        if (!is_question(view, set, question == 1)) continue;
        reduce_tile(view, sums, set, question == 1, first_row, first_column, n_columns, scales,
                    found);
        __syncthreads();
        if (t < view.n) {
          Largest best = result(set, question);
          merge(best, found[threadIdx.x]);
          merge(best, found[kTile + threadIdx.x]);
          result(set, question) = best;
        }
        __syncthreads();
      }
    }
  }
}

__device__ void local_tile(const ChunkView& view, int64_t row_tile, int64_t column_tile,
                           uint16_t* shared) {
  const int64_t first_row = row_tile * kTile, first_column = column_tile * kTile;
  Accumulators sums;
  multiply_tile({view.rows.prepared, first_row, view.n}, {view.rows.prepared, first_column, view.n},
                view.padded, shared, sums);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_row + (warp / 2) * 64 + i * 16 + half * 8 + lane / 4;
      if (row >= view.n) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int64_t column = first_column + (warp % 2) * 64 + j * 8 + (lane % 4) * 2 + k;
          if (column < view.n)
            view.scratch.local[row * kChunk + column] =
                sums[i][j][half * 2 + k] * view.rows.scale[row] * view.rows.scale[column];
        }
    }
}

// At and below the diagonal.
__host__ __device__ int64_t local_tiles(const ChunkView& view) {
  const int64_t row_tiles = (view.n + kTile - 1) / kTile;
  return view.scratch.local == nullptr ? 0 : row_tiles * (row_tiles + 1) / 2;
}

// Blocks: first the chunk's tiles at and below the diagonal, then row tiles x splits.
__global__ void __launch_bounds__(kThreads) chunk_gram(const __grid_constant__ ChunkView view) {
  extern __shared__ __align__(128) uint16_t shared[];
  const int64_t row_tiles = (view.n + kTile - 1) / kTile;
  const int64_t n_local = local_tiles(view), block = blockIdx.x;
  if (block < n_local) {
    int64_t row_tile = 0;
    while ((row_tile + 1) * (row_tile + 2) / 2 <= block) ++row_tile;
    local_tile(view, row_tile, block - row_tile * (row_tile + 1) / 2, shared);
  } else {
    cross_tiles(view, (block - n_local) % row_tiles,
                static_cast<int>((block - n_local) / row_tiles), shared);
  }
}

}  // namespace

void multiply_chunk(Context& context, const ChunkView& view) {
  SLUICE_CHECK(view.n <= kChunk && view.tile_columns == kTile && view.padded % kDepth == 0);
  check(cudaFuncSetAttribute(chunk_gram, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "shared memory of chunk_gram");
  const int64_t row_tiles = ceil_div(view.n, kTile);
  const int64_t n_blocks = local_tiles(view) + row_tiles * view.n_splits;
  chunk_gram<<<static_cast<unsigned>(n_blocks), kThreads, kSharedBytes, context.stream()>>>(view);
  check_launch("chunk_gram");
}

}  // namespace sluice::impl::cuda::selection
