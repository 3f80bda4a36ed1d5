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

// The same for rows that can be read in pieces of 16 bytes, a warp to each; of several tensors of
// as many rows together.
constexpr int kNormWarps = 4;

struct NormJobs {
  ConstRowsView rows[2];
  double* out[2];
  int n;
};

__global__ void __launch_bounds__(32 * kNormWarps)
    aligned_inverse_norms(const __grid_constant__ NormJobs jobs, int64_t n, int64_t d, int pitch,
                          OddRows odd) {
  extern __shared__ uint4 norm_memory[];
  wait_for_earlier();
  let_next_begin();
  if (blockIdx.x == 0 && threadIdx.x == 0 && odd.next != nullptr) *odd.next = 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint4* memory = norm_memory + warp * 32 * pitch;
  for (int64_t i = int64_t{blockIdx.x} * kNormWarps + warp; i < n * jobs.n;
       i += int64_t{gridDim.x} * kNormWarps) {
    const auto job = static_cast<int>(i % jobs.n);
    const int64_t row = i / jobs.n;
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
  const int64_t n = of[0].rows.rows(), d = of[0].rows.row_elements();
  if (!std::all_of(of.begin(), of.end(), [](const NormsOf& one) { return by_eights(one.rows); })) {
    for (const NormsOf& one : of) {
      inverse_norms<<<blocks(n, kNormRows), kNormThreads, 0, context.stream()>>>(
          view_of(one.rows), n, d, one.out, &one == of.data() ? odd : OddRows{});
      check_launch("inverse_norms");
    }
    return;
  }
  NormJobs jobs{};
  jobs.n = static_cast<int>(of.size());
  int pitch = 0;
  for (size_t i = 0; i < of.size(); ++i) {
    jobs.rows[i] = view_of(of[i].rows);
    jobs.out[i] = of[i].out;
    pitch = std::max(pitch, norm_pitch(norm_pieces(d * element_bytes(of[i].rows.dtype()))));
  }
  const int64_t bytes = int64_t{kNormWarps} * 32 * pitch * int64_t{sizeof(uint4)};
  check(cudaFuncSetAttribute(aligned_inverse_norms, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of inverse_norms");
  const int64_t most = 3 * context.multiprocessors(), wanted = ceil_div(n * jobs.n, kNormWarps);
  launch_early(
      context, "inverse_norms", aligned_inverse_norms,
      LaunchShape{dim3(static_cast<unsigned>(std::min(most, wanted))), 32 * kNormWarps, bytes},
      jobs, n, d, pitch, odd);
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
