// Rows made ready for selection: norms, bf16 copies, exempt tokens.

#include <cuda_bf16.h>

#include "backend/cuda/exact.cuh"
#include "backend/cuda/mma.cuh"

namespace sluice::cuda {
namespace {

constexpr int kNormRows = 32;  // of a block: a lane of its first warp sums one of them in order
constexpr int kNormColumns = 128, kNormThreads = 256;

// A norm is part of the definition of a pair, so its sum has an order too: one warp adds, row by
// lane, while the others fetch what comes next.
__global__ void inverse_norms(ConstRowsView rows, int64_t n, int64_t d, double* out) {
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
  if (warp == 0 && first + lane < n) out[first + lane] = sum > 0 ? 1 / sqrt(sum) : 0.0;
}

// The same for rows that can be read in pieces of 16 bytes: those of the next steps are on the way
// while one is added.
constexpr int kNormStages = 4, kNormBytes = 256, kNormPieces = kNormBytes / 16;
constexpr int kNormPitch = kNormBytes + 16;  // so that lanes read from different banks

template <bool kBF16>
__global__ void aligned_inverse_norms(ConstRowsView rows, int64_t n, int64_t d, double* out) {
  __shared__ __align__(16) unsigned char tile[kNormStages][kNormRows][kNormPitch];
  constexpr int64_t kElement = kBF16 ? 2 : 4;
  const int64_t first = int64_t{blockIdx.x} * kNormRows, row_bytes = d * kElement;
  const int64_t steps = (row_bytes + kNormBytes - 1) / kNormBytes;
  const auto fetch = [&](int64_t step) {
    for (int i = static_cast<int>(threadIdx.x); i < kNormRows * kNormPieces; i += kNormThreads) {
      const int row = i / kNormPieces, piece = i % kNormPieces;
      const int64_t byte = step * kNormBytes + piece * 16;
      const bool exists = first + row < n && byte < row_bytes;
      const int64_t at = exists ? (first + row) * rows.stride * kElement + byte : 0;
      copy_async(&tile[step % kNormStages][row][piece * 16], rows.data + at, exists);
    }
    commit_copies();
  };
  for (int64_t step = 0; step < kNormStages - 1; ++step) fetch(step);
  double sum = 0;
  for (int64_t step = 0; step < steps; ++step) {
    wait_copies<kNormStages - 2>();
    __syncthreads();  // the stage is there, and the one before is added
    fetch(step + kNormStages - 1);
    if (threadIdx.x >= 32) continue;
    const unsigned char* row = tile[step % kNormStages][threadIdx.x];
    // Zeros beyond the end change no sum of squares.
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
  wait_copies<0>();
  const int64_t row = first + threadIdx.x;
  if (threadIdx.x < 32 && row < n) out[row] = sum > 0 ? 1 / sqrt(sum) : 0.0;
}

// Rows whose squares could leave the range of f32 are moved into it by a power of two.
__device__ double range_scale(double inverse) {
  return inverse > 0x1p-40 && inverse < 0x1p40 ? 1.0 : exp2(static_cast<double>(ilogb(inverse)));
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

// The same for cascade-cover: rows are prepared only where they cannot be read as given, and the
// first list's are put together.
template <int kN>
__global__ void place(const __grid_constant__ CoverView view, ConstRowsView rows) {
  const ChunkView& chunk = view.chunk;
  const int64_t t = blockIdx.x, at = view.lists[0].rank[t];
  const bool listed = view.lists[0].rank[t + 1] > at, prepared = !as_given(chunk);
  const double inv = view.given_inverse[t];
  const double power = inv > 0 ? range_scale(inv) : 0.0;
  if (threadIdx.x == 0) {
    const double rest = inv > 0 ? inv / power : 0.0;
    view.scale[t] = static_cast<float>(rest);
    view.inverse[t] = rest;
    if (listed) view.listed_scale[at] = static_cast<float>(rest);
  }
  if (!listed && !prepared) return;
  const RowsView row{reinterpret_cast<std::byte*>(view.rows), chunk.padded, true};
  const RowsView column{reinterpret_cast<std::byte*>(view.listed), chunk.padded, true};
  for (int64_t i = int64_t{threadIdx.x} * kN; i < chunk.padded; i += int64_t{blockDim.x} * kN) {
    float x[kN] = {};
    if (i < chunk.d && inv > 0) load<kN>(rows, t, i, x);
    if (power != 1)
      for (int k = 0; k < kN; ++k) x[k] = static_cast<float>(double{x[k]} * power);
    if (prepared) store<kN>(row, t, i, x);
    if (listed) store<kN>(column, at, i, x);
  }
}

constexpr int kMedianTokens = 256;
static_assert(kMedianState == kMedianTokens + 1);

// The first norms go into a sorted list one by one, thread i holding the i-th; after that the
// median stands still. One block, for the first tokens of a sequence.
__global__ void exempt_first(const double* inverse, int64_t first, int64_t n, int64_t sinks,
                             double ratio, double* state, uint8_t* exempt) {
  const int i = static_cast<int>(threadIdx.x);
  __shared__ double sorted[2][kMedianTokens], norms[kMedianTokens];
  const int n_old = static_cast<int>(state[kMedianTokens]);
  const int64_t n_sinks = min(n, max(int64_t{0}, sinks - first));  // of this pass
  const auto n_new = static_cast<int>(min(n - n_sinks, int64_t{kMedianTokens - n_old}));
  for (int64_t t = i; t < n_sinks; t += kMedianTokens) exempt[t] = 1;
  sorted[0][i] = i < n_old ? state[i] : INFINITY;
  if (i < n_new) {
    const double inv = inverse[n_sinks + i];
    norms[i] = inv > 0 ? 1 / inv : 0.0;
  }
  __syncthreads();
  for (int k = 0; k < n_new; ++k) {
    const double* old = sorted[k % 2];
    double* next = sorted[(k + 1) % 2];
    const double norm = norms[k];
    next[i] = fmin(old[i], i > 0 ? fmax(old[i - 1], norm) : norm);
    __syncthreads();
    const int count = n_old + k + 1;
    if (i == 0)
      exempt[n_sinks + k] = norm > ratio * ((next[(count - 1) / 2] + next[count / 2]) / 2) ? 1 : 0;
  }
  if (i < n_old + n_new) state[i] = sorted[n_new % 2][i];
  if (i == 0) state[kMedianTokens] = n_old + n_new;
}

// The tokens behind those.
__global__ void exempt_rest(const double* inverse, int64_t first, int64_t n, int64_t sinks,
                            double ratio, const double* state, uint8_t* exempt) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t >= n || first + t < sinks + kMedianTokens) return;
  const double median = (state[(kMedianTokens - 1) / 2] + state[kMedianTokens / 2]) / 2;
  exempt[t] = (inverse[t] > 0 ? 1 / inverse[t] : 0.0) > ratio * median ? 1 : 0;
}

__global__ void sinks_only(int64_t first, int64_t n, int64_t sinks, uint8_t* exempt) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t < n) exempt[t] = first + t < sinks ? 1 : 0;
}

__global__ void members(const uint8_t* status, int64_t n, uint8_t* flags) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t >= n) return;
  const auto s = static_cast<TokenStatus>(status[t]);
  flags[t] = s == TokenStatus::kRepresentative || s == TokenStatus::kExempt ? 1 : 0;
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

void ordered_inverse_norms(Context& context, const ConstTensor& rows, double* out) {
  const auto kernel = !by_eights(rows)               ? inverse_norms
                      : rows.dtype() == DType::kBF16 ? aligned_inverse_norms<true>
                                                     : aligned_inverse_norms<false>;
  kernel<<<blocks(rows.rows(), kNormRows), kNormThreads, 0, context.stream()>>>(
      view_of(rows), rows.rows(), rows.row_elements(), out);
  check_launch("inverse_norms");
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

void place_rows(Context& context, const CoverView& view, const ConstTensor& rows) {
  const auto n = static_cast<unsigned>(rows.rows());
  if (by_eights(rows))
    place<8><<<n, 256, 0, context.stream()>>>(view, view_of(rows));
  else
    place<1><<<n, 256, 0, context.stream()>>>(view, view_of(rows));
  check_launch("place");
}

void mark_exempt(Context& context, const double* inverse, int64_t first, int64_t n, int64_t sinks,
                 double ratio, double* state, uint8_t* exempt) {
  if (inverse == nullptr) {
    sinks_only<<<blocks(n, 256), 256, 0, context.stream()>>>(first, n, sinks, exempt);
    check_launch("sinks_only");
    return;
  }
  const int64_t settled = sinks + kMedianTokens;  // from here on the median stands still
  if (first < settled) {
    exempt_first<<<1, kMedianTokens, 0, context.stream()>>>(inverse, first, n, sinks, ratio, state,
                                                            exempt);
    check_launch("exempt_first");
  }
  if (first + n > settled) {
    exempt_rest<<<blocks(n, 256), 256, 0, context.stream()>>>(inverse, first, n, sinks, ratio,
                                                              state, exempt);
    check_launch("exempt_rest");
  }
}

void mark_members(Context& context, const uint8_t* status, int64_t n, uint8_t* flags) {
  members<<<blocks(n, 256), 256, 0, context.stream()>>>(status, n, flags);
  check_launch("members");
}

}  // namespace sluice::cuda
