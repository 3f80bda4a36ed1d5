// Graded rows: which elements are left out, and leaving them out. One block to a row.

#include "backend/cuda/subspace/grade_cut.cuh"

namespace sluice::impl::cuda::subspace {
namespace {

__global__ void __launch_bounds__(kGradeThreads)
    find(ConstRowsView x, int64_t n, double squared_epsilon, RowCut* cuts) {
  const RowCut cut = cut_of(x, blockIdx.x, n, squared_epsilon);
  if (threadIdx.x == 0) cuts[blockIdx.x] = cut;
}

// The elements' own bits are kept.
__global__ void __launch_bounds__(kGradeThreads)
    apply(ConstRowsView x, int64_t n, const RowCut* cuts, RowsView graded) {
  __shared__ int shared[kGradeThreads / 32];
  const int64_t row = blockIdx.x;
  const RowCut cut = cuts[row];
  if (cut.unsure != 0) return;
  DropFilter filter(cut, shared);
  for (int64_t first = 0; first < n; first += kGradeThreads) {
    const int64_t i = first + threadIdx.x;
    float value[1] = {0};
    if (i < n) load<1>(x, row, i, value);
    const bool leave = filter.drops(magnitude_bits(value[0]), i < n);
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

}  // namespace

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

}  // namespace sluice::impl::cuda::subspace
