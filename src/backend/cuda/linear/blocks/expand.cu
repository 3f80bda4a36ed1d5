// Weights in chunks -> rows of numbers, for products of many rows.

#include "backend/cuda/linear/blocks/chunk.h"
#include "backend/cuda/linear/blocks/kernels.h"
#include "backend/cuda/primitives/element.cuh"

namespace sluice::impl::cuda::linear {
namespace {

constexpr int kExpandWarps = 8;

// kN is 4 or 8 values, which lie side by side and aligned.
template <int kN>
__device__ __forceinline__ void put_values(const float* values, bool bf16, std::byte* to) {
  if (bf16) {
#pragma unroll
    for (int i = 0; i < kN; i += 4)
      *reinterpret_cast<uint2*>(to + 2 * i) =
          make_uint2(narrowed(values[i], values[i + 1]), narrowed(values[i + 2], values[i + 3]));
  } else {
#pragma unroll
    for (int i = 0; i < kN; i += 4)
      *reinterpret_cast<float4*>(to + 4 * i) =
          make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
  }
}

struct Expansion {
  int64_t n_tiles, n_chunks, n_rows, depth;
  int64_t stride;  // of the rows written, in elements
};

template <DType kType, bool kBf16>
__device__ __forceinline__ void expand_chunk(const Expansion& args,
                                             const std::byte* __restrict__ chunks,
                                             std::byte* __restrict__ out, int64_t tile,
                                             int64_t chunk) {
  using Format = ChunkFormat<kType>;
  constexpr int kSize = kBf16 ? 2 : 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const std::byte* at = chunks + (tile * args.n_chunks + chunk) * Format::kBytes;
  const CommonScales common = read_common<kType>(at, lane);
#pragma unroll
  for (int span = 0; span < Format::kSpans; ++span) {
    float values[2][2][8];
    read_values<kType>(at, span, lane, common, values);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int step = i / 2, upper = i % 2;
      const int64_t row = tile * kTileHeight + g + 8 * upper;
      const int64_t k = chunk * Format::kDepth + span * kSpanDepth + step * kStepDepth;
      if (row >= args.n_rows || k >= args.depth) continue;
      std::byte* to = out + kSize * (row * args.stride + k);
      if constexpr (Format::kHalves) {
        put_values<4>(values[step][upper], kBf16, to + kSize * 4 * t);
        put_values<4>(values[step][upper] + 4, kBf16, to + kSize * (16 + 4 * t));
      } else if constexpr (kBf16) {
        *reinterpret_cast<uint4*>(to + kSize * 8 * t) = narrowed_eight(values[step][upper]);
      } else {
        put_values<8>(values[step][upper], kBf16, to + kSize * 8 * t);
      }
    }
  }
}

// 256 columns of a tile to each warp. Reads and writes of other warps hide its latency.
template <DType kType>
constexpr int kWarpChunks = 256 / ChunkFormat<kType>::kDepth;

template <DType kType, bool kBf16>
__global__ void __launch_bounds__(32 * kExpandWarps)
    expand_chunks(Expansion args, const std::byte* __restrict__ chunks,
                  std::byte* __restrict__ out) {
  const int64_t index = int64_t{blockIdx.x} * kExpandWarps + threadIdx.x / 32;
  const int64_t n_pieces = (args.n_chunks + kWarpChunks<kType> - 1) / kWarpChunks<kType>;
  const int64_t tile = index / n_pieces, first = index % n_pieces * kWarpChunks<kType>;
  if (tile >= args.n_tiles) return;
#pragma unroll
  for (int i = 0; i < kWarpChunks<kType>; ++i)
    if (first + i < args.n_chunks) expand_chunk<kType, kBf16>(args, chunks, out, tile, first + i);
}

}  // namespace

void expand_rows(Context& context, const ChunksView& weights, int64_t first, const Tensor& out) {
  SLUICE_CHECK(first % kTileHeight == 0 && first + out.rows() <= weights.n_rows);
  SLUICE_CHECK(out.row_elements() == weights.n_in && by_eights(out));
  if (out.rows() == 0) return;
  with_block_type(weights.dtype, [&]<DType kType>() {
    const int64_t tile_bytes = weights.n_chunks * int64_t{ChunkFormat<kType>::kBytes};
    const Expansion args{.n_tiles = ceil_div(out.rows(), kTileHeight),
                         .n_chunks = weights.n_chunks,
                         .n_rows = out.rows(),
                         .depth = weights.n_in,
                         .stride = out.row_stride()};
    const int64_t n_warps = args.n_tiles * ceil_div(args.n_chunks, kWarpChunks<kType>);
    const auto kernel =
        out.dtype() == DType::kBF16 ? expand_chunks<kType, true> : expand_chunks<kType, false>;
    const auto blocks = static_cast<unsigned>(ceil_div(n_warps, kExpandWarps));
    kernel<<<blocks, 32 * kExpandWarps, 0, context.stream()>>>(
        args, weights.chunks + first / kTileHeight * tile_bytes, out.bytes());
  });
  check_launch("expand_chunks");
}

}  // namespace sluice::impl::cuda::linear
