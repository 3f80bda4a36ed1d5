// Kernels that begin before the one ahead of them has ended, on GPUs that can do so: what they read
// of weights is under way while the others finish.
//
// Such a kernel is launched by launch_early. Every thread of it calls wait_for_earlier, before
// which it reads weights and nothing else: weights are complete when packing returns (pack.h), or
// were sent, and no kernel overtakes a copy. So what passes before this one left is complete too: a
// pass begins with a copy, that of its tokens. A kernel that calls let_next_begin lets the next one
// begin so.

#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "backend/cuda/device.h"

namespace sluice::cuda {

__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
// Until all that was launched before is done and can be seen.
__device__ inline void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// A position that is known when a kernel is launched, or, in work that is recorded, when it runs.
struct FirstPosition {
  int64_t value;
  const int32_t* recorded;  // or null

  __device__ int64_t get() const { return recorded == nullptr ? value : *recorded; }
};
inline FirstPosition first_position_of(const Context& context, int64_t value) {
  return {value, context.recorded_position()};
}

template <typename... Parameters>
bool can_wait(void (*kernel)(Parameters...)) {
  return can_wait(reinterpret_cast<const void*>(kernel));
}

struct LaunchShape {
  dim3 grid;
  int threads;
  int64_t shared_bytes = 0;
  int cluster = 1;  // blocks of one, side by side; compute capability 9.0 on
};

template <typename... Parameters>
void launch_early(Context& context, const char* name, void (*kernel)(Parameters...),
                  const LaunchShape& shape, std::type_identity_t<Parameters>... arguments) {
  cudaLaunchAttribute attributes[2]{};
  unsigned n_attributes = 0;
  if (can_wait(kernel)) {
    attributes[n_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n_attributes++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[n_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[n_attributes++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = context.stream();
  config.attrs = attributes;
  config.numAttrs = n_attributes;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}
template <typename... Parameters>
void launch_early(Context& context, const char* name, void (*kernel)(Parameters...), dim3 grid,
                  int threads, std::type_identity_t<Parameters>... arguments) {
  launch_early(context, name, kernel, LaunchShape{grid, threads}, arguments...);
}

}  // namespace sluice::cuda
