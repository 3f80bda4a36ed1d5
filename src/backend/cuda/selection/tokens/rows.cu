// Rows made ready for selection: bf16 copies.

#include "backend/cuda/selection/common/exact.cuh"

namespace sluice::impl::cuda::selection {
namespace {

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

}  // namespace sluice::impl::cuda::selection
