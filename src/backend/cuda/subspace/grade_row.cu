// One row of a graded product, from what it keeps to the list that the product takes, without a
// look from the host.

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/subspace/grade_cut.cuh"

namespace sluice::impl::cuda::subspace {
namespace {

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

struct OneRow {
  ConstRowsView x;
  int64_t n;
  double squared_epsilon, most_kept, most_columns;
  RowsView graded;
  NonZeros list;
  int32_t* by_columns;
  RowDecision* decisions;
  uint32_t* n_rows;
  uint64_t* keys;
  int64_t n_keys;
};

__device__ void write_down(const OneRow& args, int count, int kept) {
  *args.list.counts = count;
  *args.by_columns = kept <= args.most_columns ? 1 : 0;
  const uint32_t n_before = *args.n_rows;
  args.decisions[n_before % RowGate::kRoom] = {.residual = 0, .kept = kept};
  *args.n_rows = n_before + 1;
}

// One row by one block: what it keeps, where the product goes, and what it needs there.
__global__ void __launch_bounds__(kGradeThreads, 1) grade_one(OneRow args) {
  __shared__ int shared[kGradeThreads / 32];
  launch_dependents();
  wait_on_dependency();
  const ConstRowsView& x = args.x;
  const int64_t n = args.n;
  RowCut cut = cut_of(x, 0, n, args.squared_epsilon);
  if (cut.unsure != 0) cut = exact_cut(x, n, args.squared_epsilon, args.keys, args.n_keys);
  const bool whole = cut.n_kept > args.most_kept;
  DropFilter filter(cut, shared);
  int count = 0;
  for (int64_t first = 0; first < n; first += kGradeThreads) {
    const int64_t i = first + threadIdx.x;
    float value[1] = {0};
    if (i < n) load<1>(x, 0, i, value);
    const bool leave = filter.drops(magnitude_bits(value[0]), i < n);
    const bool keep = i < n && (whole || !leave);
    int all;
    const int place = count + place_among(keep, shared, &all);
    count += all;
    if (i >= n) continue;
    const uint16_t own = reinterpret_cast<const uint16_t*>(x.data)[i];
    reinterpret_cast<uint16_t*>(args.graded.data)[i] = keep ? own : uint16_t{0};
    if (!keep) continue;
    args.list.columns[place] = static_cast<int32_t>(i);
    args.list.values[place] = value[0];
  }
  if (threadIdx.x == 0) write_down(args, count, count);
}

// The same with epsilon 0, where zeros alone are left out: eights of elements, a stretch of them to
// a thread, so that the list is in order.
__global__ void __launch_bounds__(kGradeThreads, 1) list_nonzeros(OneRow args) {
  __shared__ int totals[kGradeThreads / 32];
  launch_dependents();
  wait_on_dependency();
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
  if (threadIdx.x == 0)
    write_down(args, count, count > args.most_kept ? static_cast<int>(args.n) : count);
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
                   .decisions = args.decisions,
                   .n_rows = args.n_rows,
                   .keys = args.keys,
                   .n_keys = args.n_keys};
  const bool zeros_only = args.squared_epsilon == 0 && by_eights(args.x) && by_eights(args.graded);
  launch_programmatic(context, "grade_row", zeros_only ? list_nonzeros : grade_one, dim3(1),
                      kGradeThreads, row);
}

}  // namespace sluice::impl::cuda::subspace
