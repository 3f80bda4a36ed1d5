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

// A chunk to each warp.
template <DType kType, bool kBf16>
__global__ void __launch_bounds__(32 * kExpandWarps)
    expand_chunks(const std::byte* chunks, int64_t n_all, int64_t n_chunks, int64_t n_rows,
                  int64_t depth, RowsView out) {
  using Format = ChunkFormat<kType>;
  const int64_t index = int64_t{blockIdx.x} * kExpandWarps + threadIdx.x / 32;
  if (index >= n_all) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int64_t tile = index / n_chunks, chunk = index % n_chunks;
  const std::byte* at = chunks + index * Format::kBytes;
  constexpr int kSize = kBf16 ? 2 : 4;
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
      if (row >= n_rows || k >= depth) continue;
      std::byte* to = out.data + kSize * (row * out.stride + k);
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

}  // namespace

void expand_rows(Context& context, const ChunksView& weights, int64_t first, const Tensor& out) {
  SLUICE_CHECK(first % kTileHeight == 0 && first + out.rows() <= weights.n_rows);
  SLUICE_CHECK(out.row_elements() == weights.n_in && by_eights(out));
  if (out.rows() == 0) return;
  const int64_t n_all = ceil_div(out.rows(), kTileHeight) * weights.n_chunks;
  const auto blocks = static_cast<unsigned>(ceil_div(n_all, kExpandWarps));
  with_block_type(weights.dtype, [&]<DType kType>() {
    const std::byte* from = weights.chunks + first / kTileHeight * weights.n_chunks *
                                                 int64_t{ChunkFormat<kType>::kBytes};
    const auto kernel =
        out.dtype() == DType::kBF16 ? expand_chunks<kType, true> : expand_chunks<kType, false>;
    kernel<<<blocks, 32 * kExpandWarps, 0, context.stream()>>>(
        from, n_all, weights.n_chunks, out.rows(), weights.n_in, view_of(out));
  });
  check_launch("expand_chunks");
}

}  // namespace sluice::impl::cuda::linear
