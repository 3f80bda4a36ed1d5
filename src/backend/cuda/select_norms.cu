// Norms of rows, as selection wants them: part of the definition of a pair where their squares are
// summed in index order (docs/algorithm.md, section 1).

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
__global__ void any_inverse_norms(ConstRowsView rows, int64_t n, int64_t d, double* out,
                                  OddRows odd) {
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
  const double inverse = inverse_of(sum);
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
  int64_t n[2], ordered[2];  // rows, and of these the first ones whose squares are summed in order

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
  double sums[2] = {};
  const auto add = [&](const uint4& piece) {
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = widened(words[j]);
      const double x = kBF16 ? pair.x : __uint_as_float(words[j]);
      sums[j % 2] = fma(x, x, sums[j % 2]);
      if constexpr (kBF16) sums[j % 2] = fma(double{pair.y}, double{pair.y}, sums[j % 2]);
    }
  };
  const auto* from = reinterpret_cast<const uint4*>(row) + threadIdx.x % 32;
  const auto* end = reinterpret_cast<const uint4*>(row + row_bytes);
#pragma unroll 1
  for (; from + (kAhead - 1) * 32 < end; from += kAhead * 32) {
    uint4 pieces[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) pieces[k] = __ldcs(from + k * 32);
    asm volatile("" ::: "memory");  // all on the way before the first is waited for
#pragma unroll
    for (int k = 0; k < kAhead; ++k) add(pieces[k]);
  }
#pragma unroll 1
  for (; from < end; from += 32) add(__ldcs(from));
  double sum = sums[0] + sums[1];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}
__device__ double quick_squares(const ConstRowsView& rows, int64_t row, int64_t d) {
  const int64_t element = rows.bf16 ? 2 : 4;
  const std::byte* from = rows.data + row * rows.stride * element;
  return rows.bf16 ? quick_squares<true>(from, d * element)
                   : quick_squares<false>(from, d * element);
}

// The first blocks sum what has no order, and stay; beside them come those of rows that have one,
// of the second tensor, which are few, and then of the first.
__global__ void __launch_bounds__(kFetching + 32, 4)
    aligned_inverse_norms(const __grid_constant__ NormJobs jobs, int64_t d, OddRows odd) {
  __shared__ __align__(16) NormStage tile[kNormStages];
  wait_for_earlier();
  let_next_begin();
  if (blockIdx.x == 0 && threadIdx.x == 0 && odd.next != nullptr) *odd.next = 0;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto n_first = static_cast<int>((jobs.ordered[0] + kNormRows - 1) / kNormRows);
  const auto n_second = static_cast<int>((jobs.ordered[1] + kNormRows - 1) / kNormRows);
  const int n_quick = static_cast<int>(gridDim.x) - n_first - n_second;
  int block = static_cast<int>(blockIdx.x);
  if (block < n_quick) {
    constexpr int kWarps = kFetching / 32 + 1;
    for (int64_t row = jobs.ordered[1] + int64_t{warp} * n_quick + block; row < jobs.n[1];
         row += int64_t{kWarps} * n_quick) {
      const double sum = quick_squares(jobs.rows[1], row, d);
      if (lane == 0) jobs.put(1, row, sum, odd);
    }
    return;
  }
  block -= n_quick;
  const int job = block < n_second ? 1 : 0;
  if (job == 0) block -= n_second;
  const int64_t n = jobs.ordered[job], first = int64_t{block} * kNormRows;
  const ConstRowsView rows = jobs.rows[job];
  const int64_t element = rows.bf16 ? 2 : 4;
  const auto row_bytes = static_cast<int>(d * element);
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
  if (adds && first + lane < n) jobs.put(job, first + lane, sum, odd);
}

// Of a multiprocessor, half of what it holds, together with those of the second tensor that have an
// order: a sum in order takes as long as all the others, so none should begin late.
constexpr int64_t kQuickBlocks = 2;

// The same for few rows, a warp to each: four times as much work, but sooner done. More of them
// with a second tensor, most of whose sums have no order.
constexpr int kNormWarps = 4;
constexpr int64_t kFewRows = 1024, kFewPairs = 2048;

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
    const double sum = row < jobs.ordered[job] ? sum_of_squares(jobs.rows[job], row, d, memory)
                                               : quick_squares(jobs.rows[job], row, d);
    if (threadIdx.x % 32 == 0) jobs.put(job, row, sum, odd);
  }
}

unsigned blocks(int64_t n, int64_t size) { return static_cast<unsigned>(ceil_div(n, size)); }

}  // namespace

void inverse_norms(Context& context, std::span<const NormsOf> of, const OddRows& odd) {
  SLUICE_CHECK(of.size() == 1 || (of.size() == 2 && of[0].rows.rows() == of[1].rows.rows() &&
                                  of[0].rows.row_elements() == of[1].rows.row_elements()));
  SLUICE_CHECK(of[0].n_ordered >= of[0].rows.rows());
  const int64_t d = of[0].rows.row_elements();
  if (!std::all_of(of.begin(), of.end(), [](const NormsOf& one) { return by_eights(one.rows); })) {
    for (const NormsOf& one : of) {
      const int64_t n = one.rows.rows();
      if (n == 0) continue;
      any_inverse_norms<<<blocks(n, kNormRows), kNormThreads, 0, context.stream()>>>(
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
    jobs.ordered[i] = std::min(jobs.n[i], of[i].n_ordered);
    pitch = std::max(pitch, norm_pitch(norm_pieces(d * element_bytes(of[i].rows.dtype()))));
  }
  if (jobs.n[0] > (of.size() == 2 ? kFewPairs : kFewRows)) {
    const int64_t ordered = ceil_div(jobs.ordered[1], kNormRows);
    const int64_t most = std::max(kQuickBlocks * context.multiprocessors() - ordered, int64_t{1});
    const int64_t quick = std::min(most, jobs.n[1] - jobs.ordered[1]);
    return launch_early(
        context, "inverse_norms", aligned_inverse_norms,
        dim3(blocks(jobs.ordered[0], kNormRows) + static_cast<unsigned>(ordered + quick)),
        kFetching + 32, jobs, d, odd);
  }
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

}  // namespace sluice::cuda
