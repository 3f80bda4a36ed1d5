// One token at a time, as decoding has them: one kernel for every rule that does not look ahead.
// Blocks multiply the token with kept columns; the last of them to end decides, keeps and counts.

#include <algorithm>

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/selection/common/row_squares.cuh"
#include "backend/cuda/selection/tokens/one.cuh"

namespace sluice::impl::cuda::selection {
namespace {

using one::kThreads, one::kWarps;
constexpr int64_t kNormBytes = 2 * 32 * (kMostNormPieces | 1) * int64_t{sizeof(uint4)};

// Elements [8 i, 8 i + 8) of a row that begins at 16 bytes.
template <bool kBF16>
__device__ void eight_of(const void* row, int i, float (&x)[8]) {
  if constexpr (kBF16) {
    widen_eight(static_cast<const uint4*>(row)[i], x);
  } else {
    const float4 low = static_cast<const float4*>(row)[2 * i];
    const float4 high = static_cast<const float4*>(row)[2 * i + 1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
}

// Cosines with columns but for the token's norm, in f32 and any order: rough_error(d) holds for f32
// rows too. A warp to each column; `row` in shared memory.
template <bool kBF16>
__device__ void multiply_columns(const OneView& one, const void* row) {
  const ChunkView& view = one.keep.chunk;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto* columns = static_cast<const std::byte*>(view.kept.exact.data);
  const int64_t pitch = view.kept.exact.stride * (kBF16 ? 2 : 4);
  const int eights = static_cast<int>(view.d / 8), n = *view.kept.n;
  for (int c = (static_cast<int>(blockIdx.x) - 1) * kWarps + warp; c < n;
       c += (static_cast<int>(gridDim.x) - 1) * kWarps) {
    const double inverse = view.kept.exact.inverse[c];
    float sum = 0;
#pragma unroll 8
    for (int i = lane; i < eights; i += 32) {
      float x[8], y[8];
      eight_of<kBF16>(columns + c * pitch, i, y);
      eight_of<kBF16>(row, i, x);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum = fmaf(x[k], y[k], sum);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) one.cosines[c] = inverse == 0 ? 0.0f : sum * static_cast<float>(inverse);
  }
}

__global__ void __launch_bounds__(kThreads)
    one_token(const __grid_constant__ OneView view, ConstRowsView residual) {
  extern __shared__ uint4 one_memory[];
  __shared__ one::Decision memory;
  __shared__ bool last;
  wait_on_dependency();
  launch_dependents();
  const ChunkView& chunk = view.keep.chunk;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (blockIdx.x == 0) {
    const bool is_row = warp == 0;
    if (is_row || (warp == 1 && residual.data != nullptr)) {
      const ConstRowsView row{static_cast<const std::byte*>(chunk.rows.exact.data), 0, chunk.bf16};
      uint4* own = one_memory + warp * 32 * norm_pitch(kMostNormPieces);
      const double inverse = inverse_norm(is_row ? row : residual, 0, chunk.d, own);
      if (threadIdx.x % 32 == 0) (is_row ? view.inverse : view.residual_inverse)[0] = inverse;
    }
  } else {
    const auto* row = static_cast<const uint4*>(chunk.rows.exact.data);
    const auto pieces = static_cast<int>(chunk.d * (chunk.bf16 ? 2 : 4) / 16);
    for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) one_memory[i] = row[i];
    __syncthreads();
    if (chunk.bf16)
      multiply_columns<true>(view, one_memory);
    else
      multiply_columns<false>(view, one_memory);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(view.arrived, 1) == static_cast<int>(gridDim.x) - 1;
    if (last) *view.arrived = 0;  // for the next time
    __threadfence();
  }
  __syncthreads();
  constexpr int kRoom = static_cast<int>(kNormBytes / sizeof(float));
  if (last) one::decide(view, memory, reinterpret_cast<float*>(one_memory), kRoom);
}

constexpr int64_t kMostRowBytes = int64_t{96} << 10;

}  // namespace

bool can_decide_one(const ConstTensor& rows, const ConstTensor* residual) {
  return rows.rows() == 1 && by_eights(rows) && (residual == nullptr || by_eights(*residual)) &&
         rows.row_elements() * element_bytes(rows.dtype()) <= kMostRowBytes;
}

void decide_one(Context& context, const OneView& view, const ConstTensor* residual,
                int64_t n_columns) {
  const ChunkView& chunk = view.keep.chunk;
  const int64_t bytes = std::max(kNormBytes, chunk.d * (chunk.bf16 ? 2 : 4));
  check(cudaFuncSetAttribute(one_token, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of one_token");
  const int64_t most = 3 * context.multiprocessors(), wanted = 1 + ceil_div(n_columns, kWarps);
  launch_programmatic(
      context, "one_token", one_token,
      LaunchShape{dim3(static_cast<unsigned>(std::min(most, wanted))), kThreads, bytes}, view,
      residual == nullptr ? ConstRowsView{} : view_of(*residual));
}

}  // namespace sluice::impl::cuda::selection
