// Kernels of gated linear layers, and products with few columns.

#include <algorithm>

#include "backend/cuda/primitives/block_scan.cuh"
#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/subspace/kernels.h"

namespace sluice::impl::cuda::subspace {
namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 1024;

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

__global__ void __launch_bounds__(kScanThreads) nonzeros(ConstRowsView x, int64_t n, NonZeros to) {
  __shared__ int shared[kScanThreads / 32];
  const int64_t row = blockIdx.x;
  int count = 0;
  for (int64_t first = 0; first < n; first += kScanThreads) {
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

// Every warp has an equal share of x's values. It takes 32 at a time: a lane reads one value and
// its column for all lanes.
template <bool kBF16>
__global__ void __launch_bounds__(32 * kColumnWarps)
    some_columns(ConstRowsView columns, int64_t n_in, int64_t n_out, NonZeros x, float* partial,
                 const int32_t* wanted) {
  __shared__ float sums[kColumnWarps][kColumnWidth];
  launch_dependents();
  wait_on_dependency();
  if (wanted != nullptr && *wanted == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = blockIdx.z, split = blockIdx.y, n_splits = gridDim.y;
  const int64_t at = int64_t{blockIdx.x} * kColumnWidth + lane * 8;
  const int32_t count = x.counts[row];
  // Equal shares, so that all warps have something to do when there is little.
  const int64_t n_warps = n_splits * kColumnWarps, mine = split * kColumnWarps + warp;
  const int64_t begin = count * mine / n_warps, end = count * (mine + 1) / n_warps;
  const bool inside = at < n_out;
  float sum[8] = {};
  for (int64_t first = begin; first < end; first += 32) {
    const bool exists = first + lane < end;
    const int32_t own_column = exists ? x.columns[row * n_in + first + lane] : 0;
    const float own_value = exists ? x.values[row * n_in + first + lane] : 0.0f;
    const auto n = static_cast<int>(min(end - first, int64_t{32}));
#pragma unroll 8
    for (int i = 0; i < n; ++i) {
      const int32_t column = __shfl_sync(0xffffffffu, own_column, i);
      const float value = __shfl_sync(0xffffffffu, own_value, i);
      float w[8] = {};
      if (inside) load<8>(ConstRowsView{columns.data, columns.stride, kBF16}, column, at, w);
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] += value * w[c];
    }
  }
  for (int c = 0; c < 8; ++c) sums[warp][lane * 8 + c] = sum[c];
  __syncthreads();
  const int64_t output = int64_t{blockIdx.x} * kColumnWidth + threadIdx.x;
  if (output >= n_out) return;
  float all = 0;
  for (int w = 0; w < kColumnWarps; ++w) all += sums[w][threadIdx.x];
  partial[(row * n_splits + split) * n_out + output] = all;
}

__global__ void finish_columns(const float* partial, int64_t n_splits, int64_t stride,
                               const float* bias, Activation activation, bool accumulate,
                               RowsView out, int64_t n_out, const int32_t* wanted) {
  launch_dependents();
  wait_on_dependency();
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= n_out || (wanted != nullptr && *wanted == 0)) return;
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

void find_nonzeros(Context& context, ConstTensor x, const NonZeros& to) {
  nonzeros<<<static_cast<unsigned>(x.rows()), kScanThreads, 0, context.stream()>>>(
      view_of(x), x.row_elements(), to);
  check_launch("nonzeros");
}

int64_t column_splits(const Context& context, int64_t n_out) {
  const int64_t blocks = ceil_div(n_out, kColumnWidth);
  return std::clamp<int64_t>(2 * context.multiprocessors() / blocks, 1, 32);
}

void multiply_columns(Context& context, const ColumnsProduct& args) {
  const int64_t n_in = args.columns.rows(), padded = args.columns.row_elements();
  const auto kernel =
      args.columns.dtype() == DType::kBF16 ? some_columns<true> : some_columns<false>;
  constexpr int64_t kMostRows = 65535;  // of a grid's third axis
  for (int64_t first = 0; first < args.out.rows(); first += kMostRows) {
    const dim3 grid(static_cast<unsigned>(ceil_div(padded, kColumnWidth)),
                    static_cast<unsigned>(args.n_splits),
                    static_cast<unsigned>(std::min(kMostRows, args.out.rows() - first)));
    const NonZeros x{args.x.columns + first * n_in, args.x.values + first * n_in,
                     args.x.counts + first};
    launch_programmatic(context, "some_columns", kernel, grid, 32 * kColumnWarps,
                        view_of(args.columns), n_in, padded, x,
                        args.partial + first * args.n_splits * padded, args.wanted);
  }
  const int64_t n_out = args.out.row_elements();
  const dim3 finish(static_cast<unsigned>(args.out.rows()),
                    static_cast<unsigned>(ceil_div(n_out, kThreads)));
  launch_programmatic(context, "finish_columns", finish_columns, finish, kThreads, args.partial,
                      args.n_splits, padded, args.bias, args.activation, args.accumulate,
                      view_of(args.out), n_out, args.wanted);
}

}  // namespace sluice::impl::cuda::subspace
