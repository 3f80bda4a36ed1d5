// Kernels of gated and graded linear layers: one block to a row, and products with few columns.

#include <algorithm>

#include "backend/cuda/element.cuh"
#include "backend/cuda/subspace_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

// In float64: squares of numbers from 1e-15 to 1e18 leave the range of f32.
__global__ void residuals_of(ConstRowsView x, ConstRowsView y, int64_t n_in, float* residuals) {
  __shared__ double shared[kThreads / 32];
  const int64_t row = blockIdx.x;
  double norm = 0, missed = 0;
  for (int64_t i = threadIdx.x; i < n_in; i += kThreads) {
    float a[1], b[1];
    load<1>(x, row, i, a);
    load<1>(y, row, i, b);
    norm += double{a[0]} * a[0];
    missed += (double{a[0]} - b[0]) * (double{a[0]} - b[0]);
  }
  norm = block_sum(norm, shared);
  missed = block_sum(missed, shared);
  if (threadIdx.x != 0) return;
  const double share = norm == 0 ? 0 : sqrt(missed / norm);
  residuals[row] = isfinite(share) ? static_cast<float>(share) : 1.0f;
}

__device__ uint32_t magnitude_bits(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  return bits > 0x7f800000u ? 0x7f800000u : bits;
}

// Threads of this block before mine for which `flag` holds; *all: how many there are in the block.
// shared: one place per warp.
__device__ int place_among(bool flag, int* shared, int* all) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t votes = __ballot_sync(0xffffffffu, flag);
  __syncthreads();  // whoever reads the last counts is done
  if (lane == 0) shared[warp] = __popc(votes);
  __syncthreads();
  int before = 0;
  *all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < warp) before += shared[w];
    *all += shared[w];
  }
  return before + __popc(votes & ((1u << lane) - 1));
}

constexpr int kGradeThreads = 1024;
constexpr int kBins = 2048;
// 31 bits of magnitude in three digits, the highest first.
constexpr int kDigits = 3;
__device__ constexpr int kShifts[kDigits] = {20, 10, 0};
__device__ constexpr int kWidths[kDigits] = {11, 10, 10};

// The cut lies where the energy of all smaller elements passes the budget: found digit by digit
// from sums of energy in bins. The sums are float64 in any order, so a cut whose neighbours come
// within their error of the budget is left to the host.
__global__ void __launch_bounds__(kGradeThreads)
    find(ConstRowsView x, int64_t n, double squared_epsilon, RowCut* cuts) {
  __shared__ double bins[kBins];
  __shared__ double shared[kGradeThreads / 32];
  __shared__ double below;  // energy of the elements below all bins
  __shared__ int digit;
  const int64_t row = blockIdx.x;
  const auto each = [&](auto&& body) {
    for (int64_t i = threadIdx.x; i < n; i += kGradeThreads) {
      float value[1];
      load<1>(x, row, i, value);
      const uint32_t bits = magnitude_bits(value[0]);
      const double size = __uint_as_float(bits);
      body(bits, size * size);
    }
  };
  double sum = 0;
  each([&](uint32_t, double energy) { sum += energy; });
  const double total = block_sum(sum, shared);
  const double budget = isfinite(total) ? squared_epsilon * total : 0;

  uint32_t prefix = 0;
  bool all_left_out = false;
  if (threadIdx.x == 0) below = 0;
  for (int d = 0; d < kDigits && budget > 0 && !all_left_out; ++d) {
    const int shift = kShifts[d], n_bins = 1 << kWidths[d];
    for (int i = static_cast<int>(threadIdx.x); i < n_bins; i += kGradeThreads) bins[i] = 0;
    __syncthreads();
    each([&](uint32_t bits, double energy) {
      if (d == 0 || bits >> (shift + kWidths[d]) == prefix >> (shift + kWidths[d]))
        atomicAdd(&bins[bits >> shift & static_cast<uint32_t>(n_bins - 1)], energy);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int last = -1;  // bin with anything in it
      digit = -1;
      double passed = below, before_last = below;
      for (int i = 0; i < n_bins && digit < 0; ++i) {
        if (bins[i] == 0) continue;
        before_last = passed;
        last = i;
        passed += bins[i];
        if (passed > budget) digit = i;
      }
      // Below the first digit the cut is known to lie here, whatever the rounding.
      if (digit < 0 && d > 0) digit = last;
      if (digit >= 0) below = before_last;
    }
    __syncthreads();
    all_left_out = digit < 0;
    if (!all_left_out) prefix |= static_cast<uint32_t>(digit) << shift;
    __syncthreads();
  }

  // Without a budget only zeros go.
  const uint32_t cut = budget > 0 ? (all_left_out ? kAboveAll : prefix) : 1;
  int under = 0, equal = 0;
  each([&](uint32_t bits, double) {
    under += bits < cut;
    equal += bits == cut;
  });
  const auto n_under = static_cast<int>(block_sum(static_cast<double>(under), shared));
  const auto n_equal = static_cast<int>(block_sum(static_cast<double>(equal), shared));
  if (threadIdx.x != 0) return;
  RowCut result{cut, 0, static_cast<int32_t>(n - n_under), 0};
  if (budget > 0) {
    const double error = (4.0 * static_cast<double>(n) + 64) * 0x1p-53 * total;
    const double size = __uint_as_float(cut), energy = size * size;
    if (all_left_out) {
      result.unsure = total + error >= budget;
    } else {
      const double ties = floor((budget - below) / energy);
      result.n_ties = static_cast<int>(fmin(fmax(ties, 0.0), static_cast<double>(n_equal)));
      const double left_out = below + result.n_ties * energy;
      result.unsure = !(left_out + error < budget && left_out + energy - error > budget) ||
                      result.n_ties == n_equal;
      result.n_kept -= result.n_ties;
    }
  }
  cuts[row] = result;
}

// The elements' own bits are kept.
__global__ void __launch_bounds__(kGradeThreads)
    apply(ConstRowsView x, int64_t n, const RowCut* cuts, RowsView graded) {
  __shared__ int shared[kGradeThreads / 32];
  const int64_t row = blockIdx.x;
  const RowCut cut = cuts[row];
  if (cut.unsure != 0) return;
  int ties = 0;
  for (int64_t first = 0; first < n; first += kGradeThreads) {
    const int64_t i = first + threadIdx.x;
    float value[1] = {0};
    if (i < n) load<1>(x, row, i, value);
    const uint32_t bits = magnitude_bits(value[0]);
    bool leave = bits < cut.bits;
    if (cut.n_ties > 0) {
      const bool tie = i < n && bits == cut.bits;
      int all;
      const int place = ties + place_among(tie, shared, &all);
      ties += all;
      leave = leave || (tie && place < cut.n_ties);
    }
    if (i >= n) continue;
    if (x.bf16) {
      const uint16_t own = reinterpret_cast<const uint16_t*>(x.data)[row * x.stride + i];
      reinterpret_cast<uint16_t*>(graded.data)[row * graded.stride + i] = leave ? uint16_t{0} : own;
    } else {
      const uint32_t own = reinterpret_cast<const uint32_t*>(x.data)[row * x.stride + i];
      reinterpret_cast<uint32_t*>(graded.data)[row * graded.stride + i] = leave ? 0 : own;
    }
  }
}

__global__ void __launch_bounds__(kGradeThreads) nonzeros(ConstRowsView x, int64_t n, NonZeros to) {
  __shared__ int shared[kGradeThreads / 32];
  const int64_t row = blockIdx.x;
  int count = 0;
  for (int64_t first = 0; first < n; first += kGradeThreads) {
    const int64_t i = first + threadIdx.x;
    float value[1] = {0};
    if (i < n) load<1>(x, row, i, value);
    const bool counts = value[0] != 0;  // NaN too
    int all;
    const int place = count + place_among(counts, shared, &all);
    count += all;
    if (!counts) continue;
    to.columns[row * n + place] = static_cast<int32_t>(i);
    to.values[row * n + place] = value[0];
  }
  if (threadIdx.x == 0) to.counts[row] = count;
}

constexpr int kColumnWarps = 8;
constexpr int kColumnWidth = 32 * 8;  // outputs of a block, 8 to a lane

// Warps take turns with the columns of their block's share.
__global__ void __launch_bounds__(32 * kColumnWarps)
    some_columns(ConstRowsView columns, int64_t n_in, int64_t n_out, NonZeros x, float* partial) {
  __shared__ float sums[kColumnWarps][kColumnWidth];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = blockIdx.z, split = blockIdx.y, n_splits = gridDim.y;
  const int64_t at = int64_t{blockIdx.x} * kColumnWidth + lane * 8;
  const int32_t count = x.counts[row];
  float sum[8] = {};
  if (at < n_out) {
#pragma unroll 4
    for (int64_t i = split * kColumnWarps + warp; i < count; i += n_splits * kColumnWarps) {
      float w[8];
      load<8>(columns, x.columns[row * n_in + i], at, w);
      const float value = x.values[row * n_in + i];
      for (int c = 0; c < 8; ++c) sum[c] += value * w[c];
    }
  }
  for (int c = 0; c < 8; ++c) sums[warp][lane * 8 + c] = sum[c];
  __syncthreads();
  const int64_t mine = int64_t{blockIdx.x} * kColumnWidth + threadIdx.x;
  if (mine >= n_out) return;
  float all = 0;
  for (int w = 0; w < kColumnWarps; ++w) all += sums[w][threadIdx.x];
  partial[(row * n_splits + split) * n_out + mine] = all;
}

__global__ void finish_columns(const float* partial, int64_t n_splits, int64_t stride,
                               const float* bias, Activation activation, bool accumulate,
                               RowsView out, int64_t n_out) {
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= n_out) return;
  float sum = 0, value[1] = {0};
  for (int64_t i = 0; i < n_splits; ++i) sum += partial[(row * n_splits + i) * stride + column];
  if (bias != nullptr) sum += bias[column];
  if (accumulate) load<1>(out, row, column, value);
  value[0] = accumulate ? value[0] + sum : activate(activation, sum);
  store<1>(out, row, column, value);
}

}  // namespace

void residual_rows(Context& context, ConstTensor x, ConstTensor y, float* residuals) {
  residuals_of<<<static_cast<unsigned>(x.rows()), kThreads, 0, context.stream()>>>(
      view_of(x), view_of(y), x.row_elements(), residuals);
  check_launch("residuals_of");
}

void find_cuts(Context& context, ConstTensor x, double squared_epsilon, RowCut* cuts) {
  find<<<static_cast<unsigned>(x.rows()), kGradeThreads, 0, context.stream()>>>(
      view_of(x), x.row_elements(), squared_epsilon, cuts);
  check_launch("find");
}

void apply_cuts(Context& context, ConstTensor x, const RowCut* cuts, Tensor graded) {
  apply<<<static_cast<unsigned>(x.rows()), kGradeThreads, 0, context.stream()>>>(
      view_of(x), x.row_elements(), cuts, view_of(graded));
  check_launch("apply");
}

void find_nonzeros(Context& context, ConstTensor x, const NonZeros& to) {
  nonzeros<<<static_cast<unsigned>(x.rows()), kGradeThreads, 0, context.stream()>>>(
      view_of(x), x.row_elements(), to);
  check_launch("nonzeros");
}

int64_t column_splits(const Context& context, int64_t n_out) {
  const int64_t blocks = ceil_div(n_out, kColumnWidth);
  return std::clamp<int64_t>(2 * context.multiprocessors() / blocks, 1, 32);
}

void multiply_columns(Context& context, const ColumnsProduct& args) {
  const int64_t n_in = args.columns.rows(), padded = args.columns.row_elements();
  const dim3 grid(static_cast<unsigned>(ceil_div(padded, kColumnWidth)),
                  static_cast<unsigned>(args.n_splits), static_cast<unsigned>(args.out.rows()));
  some_columns<<<grid, 32 * kColumnWarps, 0, context.stream()>>>(view_of(args.columns), n_in,
                                                                 padded, args.x, args.partial);
  check_launch("some_columns");
  const int64_t n_out = args.out.row_elements();
  const dim3 finish(static_cast<unsigned>(args.out.rows()),
                    static_cast<unsigned>(ceil_div(n_out, kThreads)));
  finish_columns<<<finish, kThreads, 0, context.stream()>>>(
      args.partial, args.n_splits, padded, args.bias, args.activation, args.accumulate,
      view_of(args.out), n_out);
  check_launch("finish_columns");
}

}  // namespace sluice::cuda
