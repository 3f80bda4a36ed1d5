// Graded rows: which elements are left out, and leaving them out. One block to a row.

#include "backend/cuda/block_scan.cuh"
#include "backend/cuda/early.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/subspace_kernels.h"

namespace sluice::cuda {
namespace {

__device__ uint32_t magnitude_bits(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  return bits > 0x7f800000u ? 0x7f800000u : bits;
}

constexpr int kGradeThreads = 1024;
constexpr int kBins = 2048;
// 31 bits of magnitude in three digits, the highest first.
constexpr int kDigits = 3;
__device__ constexpr int kShifts[kDigits] = {20, 10, 0};
__device__ constexpr int kWidths[kDigits] = {11, 10, 10};

// The cut lies where the energy of all smaller elements passes the budget: found digit by digit
// from sums of energy in bins. The sums are float64 in any order, so a cut whose neighbours come
// within their error of the budget is unsure. Every thread of the block gets it.
__device__ RowCut cut_of(const ConstRowsView& x, int64_t row, int64_t n, double squared_epsilon) {
  __shared__ double bins[kBins];
  __shared__ double shared[kGradeThreads / 32];
  __shared__ double below, next_below;  // energy of the elements below all bins
  __shared__ int digit, last;           // where the budget is passed; the last with anything in it
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
    const int per_thread = n_bins / kGradeThreads,
              mine = static_cast<int>(threadIdx.x) * per_thread;
    double energy = 0;
    for (int i = 0; i < per_thread; ++i) energy += bins[mine + i];
    double before = below + sum_before(energy, shared);
    if (threadIdx.x == 0) {
      digit = n_bins;
      last = -1;
    }
    __syncthreads();
    for (int i = mine; i < mine + per_thread; ++i) {
      if (bins[i] == 0) continue;
      atomicMax(&last, i);
      if (before + bins[i] > budget) atomicMin(&digit, i);
      before += bins[i];
    }
    __syncthreads();
    // Past the first digit the cut is known to lie here, whatever the rounding.
    const int found = digit < n_bins || d == 0 ? digit : last;
    all_left_out = found == n_bins;
    if (!all_left_out) prefix |= static_cast<uint32_t>(found) << shift;
    for (int i = mine + per_thread - 1; i >= mine; --i) {
      before -= bins[i];
      if (i == found) next_below = before;
    }
    __syncthreads();
    if (threadIdx.x == 0 && !all_left_out) below = next_below;
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
  return result;
}

__global__ void __launch_bounds__(kGradeThreads)
    find(ConstRowsView x, int64_t n, double squared_epsilon, RowCut* cuts) {
  const RowCut cut = cut_of(x, blockIdx.x, n, squared_epsilon);
  if (threadIdx.x == 0) cuts[blockIdx.x] = cut;
}

// The definition itself, for one row in a million: sorted by the block, summed by one thread in
// float64 and in the definition's order. keys: (n_keys) places, a power of two and no less than n.
__device__ RowCut exact_cut(const ConstRowsView& x, int64_t n, double squared_epsilon,
                            uint64_t* keys, int64_t n_keys) {
  __shared__ RowCut result;
  const auto value_at = [&](int64_t i) {
    float value[1];
    load<1>(x, 0, i, value);
    return value[0];
  };
  for (int64_t i = threadIdx.x; i < n_keys; i += kGradeThreads)
    keys[i] =
        i < n ? uint64_t{magnitude_bits(value_at(i))} << 32 | static_cast<uint64_t>(i) : UINT64_MAX;
  for (int64_t size = 2; size <= n_keys; size *= 2)
    for (int64_t apart = size / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int64_t i = threadIdx.x; i < n_keys; i += kGradeThreads) {
        const int64_t other = i ^ apart;
        if (other <= i) continue;
        const uint64_t a = keys[i], b = keys[other];
        if ((a > b) != ((i & size) == 0)) continue;
        keys[i] = b;
        keys[other] = a;
      }
    }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0, left_out = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double value = value_at(i);
      total = __dadd_rn(total, __dmul_rn(value, value));
    }
    const double budget = isfinite(total) ? squared_epsilon * total : 0;
    const auto bits_at = [&](int64_t i) { return static_cast<uint32_t>(keys[i] >> 32); };
    int64_t count = 0;
    for (; count < n; ++count) {
      const double size = __uint_as_float(bits_at(count));
      left_out = __dadd_rn(left_out, __dmul_rn(size, size));
      if (!(left_out <= budget)) break;
    }
    result = {count < n ? bits_at(count) : kAboveAll, 0, static_cast<int32_t>(n - count), 0};
    for (int64_t i = count; i > 0 && bits_at(i - 1) == result.bits; --i) ++result.n_ties;
  }
  __syncthreads();
  return result;
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

struct OneRow {
  ConstRowsView x;
  int64_t n;
  double squared_epsilon, most_kept, most_columns;
  RowsView graded;
  NonZeros list;
  int32_t* by_columns;
  RowVerdict* verdict;
  uint64_t* keys;
  int64_t n_keys;
};

// One row by one block: what it keeps, where the product goes, and what it needs there.
__global__ void __launch_bounds__(kGradeThreads, 1) grade_one(OneRow args) {
  __shared__ int shared[kGradeThreads / 32];
  let_next_begin();
  wait_for_earlier();
  const ConstRowsView& x = args.x;
  const int64_t n = args.n;
  RowCut cut = cut_of(x, 0, n, args.squared_epsilon);
  if (cut.unsure != 0) cut = exact_cut(x, n, args.squared_epsilon, args.keys, args.n_keys);
  const bool whole = cut.n_kept > args.most_kept;
  int ties = 0, count = 0;
  for (int64_t first = 0; first < n; first += kGradeThreads) {
    const int64_t i = first + threadIdx.x;
    float value[1] = {0};
    if (i < n) load<1>(x, 0, i, value);
    const uint32_t bits = magnitude_bits(value[0]);
    bool leave = bits < cut.bits;
    int all;
    if (cut.n_ties > 0) {
      const bool tie = i < n && bits == cut.bits;
      const int place = ties + place_among(tie, shared, &all);
      ties += all;
      leave = leave || (tie && place < cut.n_ties);
    }
    const bool keep = i < n && (whole || !leave);
    const int place = count + place_among(keep, shared, &all);
    count += all;
    if (i >= n) continue;
    const uint16_t own = reinterpret_cast<const uint16_t*>(x.data)[i];
    reinterpret_cast<uint16_t*>(args.graded.data)[i] = keep ? own : uint16_t{0};
    if (!keep) continue;
    args.list.columns[place] = static_cast<int32_t>(i);
    args.list.values[place] = value[0];
  }
  if (threadIdx.x != 0) return;
  *args.list.counts = count;
  *args.by_columns = count <= args.most_columns ? 1 : 0;
  *args.verdict = {.residual = 0, .kept = count};
}

// The same with epsilon 0, where zeros alone are left out: eights of elements, a stretch of them to
// a thread, so that the list is in order.
__global__ void __launch_bounds__(kGradeThreads, 1) list_nonzeros(OneRow args) {
  __shared__ int totals[kGradeThreads / 32];
  let_next_begin();
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t n_eights = args.n / 8, per = (n_eights + kGradeThreads - 1) / kGradeThreads;
  const int64_t begin = threadIdx.x * per;
  const int64_t end = begin + per < n_eights ? begin + per : n_eights;
  int own = 0;
  float values[8];
  for (int64_t i = begin; i < end; ++i) {
    const uint4 bits = *reinterpret_cast<const uint4*>(args.x.data + 16 * i);
    *reinterpret_cast<uint4*>(args.graded.data + 16 * i) = bits;
    widen_eight(bits, values);
#pragma unroll
    for (int k = 0; k < 8; ++k) own += values[k] != 0;  // NaN too
  }
  int up_to = own;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, up_to, step);
    if (lane >= step) up_to += other;
  }
  if (lane == 31) totals[warp] = up_to;
  __syncthreads();
  int place = up_to - own, count = 0;
  for (int w = 0; w < kGradeThreads / 32; ++w) {
    if (w < warp) place += totals[w];
    count += totals[w];
  }
  for (int64_t i = begin; i < end; ++i) {
    widen_eight(*reinterpret_cast<const uint4*>(args.x.data + 16 * i), values);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (values[k] == 0) continue;
      args.list.columns[place] = static_cast<int32_t>(8 * i + k);
      args.list.values[place++] = values[k];
    }
  }
  if (threadIdx.x != 0) return;
  const int kept = count > args.most_kept ? static_cast<int>(args.n) : count;
  *args.list.counts = count;
  *args.by_columns = kept <= args.most_columns ? 1 : 0;
  *args.verdict = {.residual = 0, .kept = kept};
}

}  // namespace

void grade_row(Context& context, const GradeRowArgs& args) {
  SLUICE_CHECK(args.x.dtype() == DType::kBF16 && args.x.rows() == 1);
  const OneRow row{.x = view_of(args.x),
                   .n = args.x.row_elements(),
                   .squared_epsilon = args.squared_epsilon,
                   .most_kept = args.most_kept,
                   .most_columns = args.most_columns,
                   .graded = view_of(args.graded),
                   .list = args.list,
                   .by_columns = args.by_columns,
                   .verdict = args.verdict,
                   .keys = args.keys,
                   .n_keys = args.n_keys};
  const bool zeros_only = args.squared_epsilon == 0 && by_eights(args.x) && by_eights(args.graded);
  launch_early(context, "grade_row", zeros_only ? list_nonzeros : grade_one, dim3(1), kGradeThreads,
               row);
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

}  // namespace sluice::cuda
