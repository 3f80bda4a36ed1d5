// Rows made ready for selection: norms and bf16 copies.

#include <cuda_bf16.h>

#include <algorithm>

#include "backend/cuda/early.cuh"
#include "backend/cuda/exact.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/row_squares.cuh"

namespace sluice::cuda {
namespace {

constexpr int kNormRows = 32;  // of a block: a lane of its first warp sums one of them in order
constexpr int kNormColumns = 128, kNormThreads = 256;

// A norm is part of the definition of a pair, so its sum has an order too: one warp adds, row by
// lane, while the others fetch what comes next.
__global__ void inverse_norms(ConstRowsView rows, int64_t n, int64_t d, double* out, OddRows odd) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && odd.next != nullptr) *odd.next = 0;
  __shared__ float tile[2][kNormRows][kNormColumns + 1];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first = int64_t{blockIdx.x} * kNormRows;
  const auto fetch = [&](int64_t column, int buffer, int of, int n_warps) {
    for (int row = of; row < kNormRows; row += n_warps) {
      float x[kNormColumns / 32][1] = {};
#pragma unroll
      for (int j = 0; j < kNormColumns / 32; ++j) {
        const int64_t i = column + lane + 32 * j;
        if (first + row < n && i < d) load<1>(rows, first + row, i, x[j]);
      }
#pragma unroll
      for (int j = 0; j < kNormColumns / 32; ++j) tile[buffer][row][lane + 32 * j] = x[j][0];
    }
  };
  fetch(0, 0, warp, kNormThreads / 32);
  double sum = 0;
  int buffer = 0;
  for (int64_t column = 0; column < d; column += kNormColumns, buffer ^= 1) {
    __syncthreads();
    if (warp > 0) {
      if (column + kNormColumns < d)
        fetch(column + kNormColumns, buffer ^ 1, warp - 1, kNormThreads / 32 - 1);
      continue;
    }
    // Zeros beyond the end change no sum of squares.
#pragma unroll 16
    for (int i = 0; i < kNormColumns; ++i) {
      const double x = tile[buffer][lane][i];
      sum = fma(x, x, sum);  // the square is exact, so this rounds as a sum does
    }
  }
  if (warp != 0 || first + lane >= n) return;
  const double inverse = sum > 0 ? 1 / sqrt(sum) : 0.0;
  out[first + lane] = inverse;
  if (odd.found != nullptr && is_odd(inverse)) *odd.found = 1;
}

// The same for rows that can be read in pieces of 16 bytes: one warp does nothing but add, those of
// the next steps are on the way. Several tensors of as many rows together.
constexpr int kNormStages = 3, kNormBytes = 384, kNormPieces = kNormBytes / 16;
constexpr int kNormPitch = kNormBytes + 16;  // so that lanes read from different banks
constexpr int kFetching = 256, kFetches = kNormRows * kNormPieces / kFetching;
static_assert(kNormRows * kNormPieces % kFetching == 0);
using NormStage = unsigned char[kNormRows][kNormPitch];

template <bool kBF16>
__device__ void add_squares(const unsigned char* row, double& sum) {
#pragma unroll
  for (int piece = 0; piece < kNormPieces; ++piece) {
    const uint4 four = *reinterpret_cast<const uint4*>(row + piece * 16);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kBF16) {
        const float2 pair = widened(words[k]);
        sum = fma(double{pair.x}, double{pair.x}, sum);
        sum = fma(double{pair.y}, double{pair.y}, sum);
      } else {
        const double x = __uint_as_float(words[k]);
        sum = fma(x, x, sum);
      }
    }
  }
}

// Which warp adds: a quarter of a multiprocessor converts to float64 slowly, so that blocks beside
// each other should not all use the same. A block's warps begin at a multiple of four.
__device__ int adding_warp() {
  constexpr int kBlockWarps = (kFetching / 32 + 1 + 3) / 4 * 4;
  __shared__ int chosen;
  if (threadIdx.x == 0) {
    uint32_t slot;
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(slot));
    chosen = static_cast<int>(slot / kBlockWarps % 4);
  }
  __syncthreads();
  return chosen;
}

struct NormJobs {
  ConstRowsView rows[2];
  double* out[2];
  int64_t n[2];
};

__global__ void __launch_bounds__(kFetching + 32)
    aligned_inverse_norms(const __grid_constant__ NormJobs jobs, int64_t d, OddRows odd) {
  __shared__ __align__(16) NormStage tile[kNormStages];
  wait_for_earlier();
  let_next_begin();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && odd.next != nullptr) *odd.next = 0;
  const int64_t n = jobs.n[blockIdx.y];
  const ConstRowsView rows = jobs.rows[blockIdx.y];
  const int64_t element = rows.bf16 ? 2 : 4, first = int64_t{blockIdx.x} * kNormRows;
  const auto row_bytes = static_cast<int>(d * element);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int adding = adding_warp();
  const bool adds = warp == adding;

  // What a thread fetches of every step: where from, where to, and how far its row goes on.
  const std::byte* from[kFetches];
  int to[kFetches], left[kFetches];
#pragma unroll
  for (int k = 0; k < kFetches; ++k) {
    const int i = (warp > adding ? warp - 1 : warp) * 32 + lane + k * kFetching;
    const int row = i / kNormPieces, byte = i % kNormPieces * 16;
    from[k] = rows.data + (first + row) * rows.stride * element + byte;
    to[k] = row * kNormPitch + byte;
    left[k] = first + row < n ? row_bytes - byte : 0;
  }
  const auto fetch = [&](int step, int stage) {
    if (adds) return;
#pragma unroll
    for (int k = 0; k < kFetches; ++k) {
      const bool exists = step * kNormBytes < left[k];
      copy_async(&tile[stage][0][0] + to[k], exists ? from[k] + step * kNormBytes : rows.data,
                 exists);
    }
    commit_copies();
  };
  const int steps = (row_bytes + kNormBytes - 1) / kNormBytes;
  for (int step = 0; step < kNormStages - 1; ++step) fetch(step, step);
  double sum = 0;
  for (int step = 0, stage = 0; step < steps; ++step) {
    if (!adds) wait_copies<kNormStages - 2>();
    __syncthreads();  // the stage is there, and the one before is added
    fetch(step + kNormStages - 1, stage == 0 ? kNormStages - 1 : stage - 1);
    // Zeros beyond the end change no sum of squares.
    if (adds && rows.bf16) add_squares<true>(tile[stage][lane], sum);
    if (adds && !rows.bf16) add_squares<false>(tile[stage][lane], sum);
    stage = stage == kNormStages - 1 ? 0 : stage + 1;
  }
  wait_copies<0>();
  if (!adds || first + lane >= n) return;
  const double inverse = sum > 0 ? 1 / sqrt(sum) : 0.0;
  jobs.out[blockIdx.y][first + lane] = inverse;
  if (blockIdx.y == 0 && odd.found != nullptr && is_odd(inverse)) *odd.found = 1;
}

// The same for few rows, a warp to each: four times as much work, but sooner done.
constexpr int kNormWarps = 4;
constexpr int64_t kFewRows = 2048;

__global__ void __launch_bounds__(32 * kNormWarps)
    few_inverse_norms(const __grid_constant__ NormJobs jobs, int64_t d, int pitch, OddRows odd) {
  extern __shared__ uint4 norm_memory[];
  wait_for_earlier();
  let_next_begin();
  if (blockIdx.x == 0 && threadIdx.x == 0 && odd.next != nullptr) *odd.next = 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint4* memory = norm_memory + warp * 32 * pitch;
  for (int64_t i = int64_t{blockIdx.x} * kNormWarps + warp; i < jobs.n[0] + jobs.n[1];
       i += int64_t{gridDim.x} * kNormWarps) {
    const int job = i < jobs.n[0] ? 0 : 1;
    const int64_t row = job == 0 ? i : i - jobs.n[0];
    const double inverse = inverse_norm(jobs.rows[job], row, d, memory);
    if (threadIdx.x % 32 != 0) continue;
    jobs.out[job][row] = inverse;
    if (job == 0 && odd.found != nullptr && is_odd(inverse)) *odd.found = 1;
  }
}

// kN: how many elements a thread takes at a time, 1 or 8.
template <int kN>
__global__ void prepare(ConstRowsView rows, const double* inverse, int64_t d, int64_t padded,
                        RowsView out, float* scale, double* prepared_inverse) {
  const int64_t row = blockIdx.x;
  const double inv = inverse[row];
  const double power = inv > 0 ? range_scale(inv) : 0.0;
  if (threadIdx.x == 0) {
    const double rest = inv > 0 ? inv / power : 0.0;
    scale[row] = static_cast<float>(rest);
    prepared_inverse[row] = rest;
  }
  for (int64_t i = int64_t{threadIdx.x} * kN; i < padded; i += int64_t{blockDim.x} * kN) {
    float x[kN] = {};
    if (i < d && inv > 0) load<kN>(rows, row, i, x);
    if (power != 1)
      for (int k = 0; k < kN; ++k) x[k] = static_cast<float>(double{x[k]} * power);
    store<kN>(out, row, i, x);
  }
}

unsigned blocks(int64_t n, int64_t size) { return static_cast<unsigned>(ceil_div(n, size)); }

}  // namespace

RuleView rule_view(SelectRule rule) {
  switch (rule) {
    case SelectRule::kIndependent:
      return {.absolute = true, .plain = kIsAny, .inherited = kIsAny};
    case SelectRule::kGreedy:
      return {};
    case SelectRule::kCascadeCausal:
      return {.absolute = true, .plain = kIsKept, .inherited = kIsInherited};
    case SelectRule::kCascadeCover:
      return {.inherited = kIsKept};
    case SelectRule::kFixed:
      return {.fixed = true};
    case SelectRule::kCascadePaper:
      break;
  }
  SLUICE_CHECK(!"rule that looks ahead");
}

void ordered_inverse_norms(Context& context, std::span<const NormsOf> of, const OddRows& odd) {
  SLUICE_CHECK(of.size() == 1 || (of.size() == 2 && of[0].rows.rows() == of[1].rows.rows() &&
                                  of[0].rows.row_elements() == of[1].rows.row_elements()));
  const int64_t d = of[0].rows.row_elements();
  if (!std::all_of(of.begin(), of.end(), [](const NormsOf& one) { return by_eights(one.rows); })) {
    for (const NormsOf& one : of) {
      const int64_t n = one.rows.rows();
      if (n == 0) continue;
      inverse_norms<<<blocks(n, kNormRows), kNormThreads, 0, context.stream()>>>(
          view_of(one.rows), n, d, one.out, &one == of.data() ? odd : OddRows{});
      check_launch("inverse_norms");
    }
    return;
  }
  NormJobs jobs{};
  int pitch = 0;
  for (size_t i = 0; i < of.size(); ++i) {
    jobs.rows[i] = view_of(of[i].rows);
    jobs.out[i] = of[i].out;
    jobs.n[i] = of[i].rows.rows();
    pitch = std::max(pitch, norm_pitch(norm_pieces(d * element_bytes(of[i].rows.dtype()))));
  }
  if (jobs.n[0] + jobs.n[1] > kFewRows)
    return launch_early(context, "inverse_norms", aligned_inverse_norms,
                        dim3(blocks(jobs.n[0], kNormRows), static_cast<unsigned>(of.size())),
                        kFetching + 32, jobs, d, odd);
  const int64_t bytes = int64_t{kNormWarps} * 32 * pitch * int64_t{sizeof(uint4)};
  check(cudaFuncSetAttribute(few_inverse_norms, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of inverse_norms");
  const int64_t most = 3 * context.multiprocessors(),
                wanted = ceil_div(jobs.n[0] + jobs.n[1], kNormWarps);
  launch_early(
      context, "inverse_norms", few_inverse_norms,
      LaunchShape{dim3(static_cast<unsigned>(std::min(most, wanted))), 32 * kNormWarps, bytes},
      jobs, d, pitch, odd);
}

void prepare_rows(Context& context, const ConstTensor& rows, const double* inverse, int64_t padded,
                  uint16_t* out, float* scale, double* prepared_inverse) {
  const RowsView to{reinterpret_cast<std::byte*>(out), padded, true};
  const auto n = static_cast<unsigned>(rows.rows());
  if (by_eights(rows))
    prepare<8><<<n, 256, 0, context.stream()>>>(view_of(rows), inverse, rows.row_elements(), padded,
                                                to, scale, prepared_inverse);
  else
    prepare<1><<<n, 256, 0, context.stream()>>>(view_of(rows), inverse, rows.row_elements(), padded,
                                                to, scale, prepared_inverse);
  check_launch("prepare");
}

}  // namespace sluice::cuda
