// RefineEstimate of backend/refine.h on the device, for pages.

#pragma once

#include "backend/cuda/attention/refine/kernels.h"

namespace sluice::impl::cuda::refine {

constexpr float kLogPage = 2.7725887222397811f;  // log of kPage
constexpr float kLinearFrom = 2.3548201f;        // sqrt(2 kLogPage): RefineEstimate::linear_from
static_assert(kPage == 16 && kSpreadGroups == 8);

// DimGroups of a key/value head.
struct DeviceGroups {
  const uint16_t *dims, *begins;

  __device__ DeviceGroups(const RefineView& view, int64_t kv_head) {
    dims = view.cache.dims + kv_head * (view.head_dim + kSpreadGroups + 1);
    begins = dims + view.head_dim;
  }
};
__device__ inline float sqrt_fast(float x) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;\n" : "=f"(root) : "f"(x));
  return root;
}
// RefineEstimate::excess.
__device__ inline float excess_of(float variance, float sigma) {
  return sigma < kLinearFrom ? 0.5f * variance : fmaf(kLinearFrom, sigma, -kLogPage);
}
// RefineEstimate::error.
__device__ inline float error_of(float sigma, float excess, float rho) {
  return fmaf(fminf(sigma, 1.0f), rho, fminf(excess, 1.0f));
}

}  // namespace sluice::impl::cuda::refine
