// Packing of panels and the choice of a kernel, see gemm/gemm.h.

#include <algorithm>

#include "backend/cpu/gemm/gemm.h"
#include "core/error.h"

namespace sluice::impl::cpu::gemm {
namespace {

template <typename Source, typename Panel>
void pack(const Kernel& kernel, const Source* src, int64_t stride, int64_t n, int64_t k,
          Panel* panel) {
  const int64_t nr = kernel.nr, kq = kernel.kq, k_end = kernel.padded_k(k);
  for (int64_t k0 = 0; k0 < k_end; k0 += kq)
    for (int64_t column = 0; column < nr; ++column)
      for (int64_t q = 0; q < kq; ++q) {
        const bool inside = column < n && k0 + q < k;
        *panel++ = inside ? from_float<Panel>(to_float(src[column * stride + k0 + q]))
                          : from_float<Panel>(0.0f);
      }
}

}  // namespace

template <typename Source>
void pack_panel_rows(const Kernel& kernel, const Source* src, int64_t stride, int64_t n, int64_t k,
                     void* panel) {
  if (kernel.b_dtype == DType::kBF16)
    pack(kernel, src, stride, n, k, static_cast<BFloat16*>(panel));
  else
    pack(kernel, src, stride, n, k, static_cast<float*>(panel));
}

template void pack_panel_rows(const Kernel&, const float*, int64_t, int64_t, int64_t, void*);
template void pack_panel_rows(const Kernel&, const BFloat16*, int64_t, int64_t, int64_t, void*);

const Kernel& kernel_for(DType dtype) {
  if (dtype == DType::kF32) return kernel_f32();
  SLUICE_CHECK(dtype == DType::kBF16);
  for (const Kernel* kernel : {kernel_amx(), kernel_bfmmla()})
    if (kernel != nullptr) return *kernel;
  return kernel_f32_bf16();
}

}  // namespace sluice::impl::cpu::gemm
