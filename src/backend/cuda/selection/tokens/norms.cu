// Norms of rows. Part of the definition of a pair are those whose squares are summed in index order
// (docs/algorithm.md, section 1), but where others are near enough, which
// selection/common/exact.cuh tells, nobody asks for the order.

#include <algorithm>

#include "backend/cuda/primitives/squares.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/selection/common/exact.cuh"
#include "backend/cuda/selection/common/row_squares.cuh"

namespace sluice::impl::cuda::selection {
namespace {

constexpr int kNormWarps = 4;

struct RowsAnywhere {
  ExactRows rows;
  double* out;
  int64_t n, d;
  bool bf16;
};

// Rows that begin anywhere, a warp to each.
__global__ void __launch_bounds__(32 * kNormWarps)
    inverse_norms_anywhere(const __grid_constant__ RowsAnywhere of, OddRows odd) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && odd.next != nullptr) *odd.next = 0;
  const int64_t row = int64_t{blockIdx.x} * kNormWarps + threadIdx.x / 32;
  if (row >= of.n) return;
  const double inverse = ordered_inverse(of.rows, row, of.d, of.bf16);
  if (threadIdx.x % 32 != 0) return;
  of.out[row] = inverse;
  if (odd.found != nullptr && is_odd(inverse)) *odd.found = 1;
}

// Rows that can be read in pieces of 16 bytes. Of one tensor or of two.
struct NormJobs {
  ConstRowsView rows[2];
  const double* squares[2];  // or nullptr
  double* out[2];
  int64_t n[2], ordered[2];  // rows, and of these the first ones whose squares are summed in order

  // Rows whose squares are not there, the first ones.
  __host__ __device__ int64_t summed(int job) const {
    return squares[job] == nullptr ? n[job] : ordered[job];
  }
  __device__ void put(int job, int64_t row, double sum, const OddRows& odd) const {
    const double inverse = inverse_of(sum);
    out[job][row] = inverse;
    if (job == 0 && odd.found != nullptr && is_odd(inverse)) *odd.found = 1;
  }
};

// A row's sum of squares in any order, by a warp. What else is in L2 is wanted sooner than this.
template <bool kBF16>
__device__ double quick_squares(const std::byte* row, int64_t row_bytes) {
  constexpr int kAhead = 8;
  double sum = 0;
  const auto add = [&](const uint4& piece) {
    float x[kBF16 ? 8 : 4];
    if constexpr (kBF16)
      widen_eight(piece, x);
    else
      widen_four(piece, x);
    sum += squares_of(x);
  };
  const auto* from = reinterpret_cast<const uint4*>(row) + threadIdx.x % 32;
  const auto* end = reinterpret_cast<const uint4*>(row + row_bytes);
#pragma unroll 1
  for (; from + (kAhead - 1) * 32 < end; from += kAhead * 32) {
    uint4 pieces[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) pieces[k] = __ldcs(from + k * 32);
    asm volatile("" ::: "memory");  // all loads are issued before the first is used
#pragma unroll
    for (int k = 0; k < kAhead; ++k) add(pieces[k]);
  }
#pragma unroll 1
  for (; from < end; from += 32) add(__ldcs(from));
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}
__device__ double quick_squares(const ConstRowsView& rows, int64_t row, int64_t d) {
  const int64_t element = rows.bf16 ? 2 : 4;
  const std::byte* from = rows.data + row * rows.stride * element;
  return rows.bf16 ? quick_squares<true>(from, d * element)
                   : quick_squares<false>(from, d * element);
}

// Sums in order take longest and begin first: those of the second tensor.
__global__ void __launch_bounds__(32 * kNormWarps)
    inverse_norms_of(const __grid_constant__ NormJobs jobs, int64_t d, int pitch, OddRows odd) {
  extern __shared__ uint4 norm_memory[];
  wait_on_dependency();
  launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0 && odd.next != nullptr) *odd.next = 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint4* memory = norm_memory + warp * 32 * pitch;
  int64_t ends[3] = {jobs.ordered[1], jobs.summed(0), jobs.summed(1) - jobs.ordered[1]};
  ends[1] += ends[0];
  ends[2] += ends[1];
  for (int64_t i = int64_t{blockIdx.x} * kNormWarps + warp; i < ends[2];
       i += int64_t{gridDim.x} * kNormWarps) {
    const int job = i >= ends[0] && i < ends[1] ? 0 : 1;
    const int64_t row = i < ends[0] ? i : job == 0 ? i - ends[0] : i - ends[1] + ends[0];
    const double sum = row < jobs.ordered[job] ? sum_of_squares(jobs.rows[job], row, d, memory)
                                               : quick_squares(jobs.rows[job], row, d);
    if (threadIdx.x % 32 == 0) jobs.put(job, row, sum, odd);
  }
  for (int job = 0; job < 2; ++job)
    for (int64_t row = jobs.summed(job) + int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
         row < jobs.n[job]; row += int64_t{gridDim.x} * blockDim.x)
      jobs.put(job, row, jobs.squares[job][2 * row], odd);
}

}  // namespace

void inverse_norms(Context& context, std::span<const NormsOf> of, const OddRows& odd) {
  SLUICE_CHECK(of.size() == 1 || (of.size() == 2 && of[0].rows.rows() == of[1].rows.rows() &&
                                  of[0].rows.row_elements() == of[1].rows.row_elements()));
  const int64_t d = of[0].rows.row_elements();
  if (!std::all_of(of.begin(), of.end(), [](const NormsOf& one) { return by_eights(one.rows); })) {
    for (const NormsOf& one : of) {
      const int64_t n = one.rows.rows();
      if (n == 0) continue;
      const ConstRowsView view = view_of(one.rows);
      inverse_norms_anywhere<<<static_cast<unsigned>(ceil_div(n, kNormWarps)), 32 * kNormWarps, 0,
                               context.stream()>>>({.rows = {view.data, view.stride, nullptr},
                                                    .out = one.out,
                                                    .n = n,
                                                    .d = d,
                                                    .bf16 = view.bf16},
                                                   &one == of.data() ? odd : OddRows{});
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
    jobs.ordered[i] = std::min(jobs.n[i], of[i].n_ordered);
    jobs.squares[i] = of[i].squares;
    pitch = std::max(pitch, norm_pitch(norm_pieces(d * element_bytes(of[i].rows.dtype()))));
  }
  const int64_t bytes = int64_t{kNormWarps} * 32 * pitch * int64_t{sizeof(uint4)};
  check(cudaFuncSetAttribute(inverse_norms_of, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of inverse_norms");
  const int64_t most = 3 * context.multiprocessors();
  const int64_t wanted = std::max(ceil_div(jobs.summed(0) + jobs.summed(1), kNormWarps),
                                  ceil_div(jobs.n[0], 32 * kNormWarps));
  launch_programmatic(
      context, "inverse_norms", inverse_norms_of,
      LaunchShape{dim3(static_cast<unsigned>(std::min(most, wanted))), 32 * kNormWarps, bytes},
      jobs, d, pitch, odd);
}

}  // namespace sluice::impl::cuda::selection
