// Programmatic dependent launch, on GPUs that have it: a kernel starts before the one ahead of it
// has ended, and loads weights meanwhile.
//
// Such a kernel is launched by launch_programmatic(). Every thread of it calls
// wait_on_dependency(), and before that it reads weights only. Weights are complete when packing
// returns (linear/pack.h), or were copied, and no kernel overtakes a copy. What earlier passes left
// is complete too, since a pass begins with a copy, that of its tokens. A kernel that calls
// launch_dependents() lets the next one start early.

#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda {

__device__ inline void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
// Returns when all earlier kernels are done and what they wrote is visible.
__device__ inline void wait_on_dependency() {
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
bool has_dependent_launch(void (*kernel)(Parameters...)) {
  return has_dependent_launch(reinterpret_cast<const void*>(kernel));
}

struct LaunchShape {
  dim3 grid;
  int threads;
  int64_t shared_bytes = 0;
  int cluster = 1;  // blocks of one, side by side; compute capability 9.0 on
  // Blocks wait for each other: all are resident at one time, or the launch fails. At most as many
  // as fit the device (cudaOccupancyMaxActiveBlocksPerMultiprocessor times multiprocessors).
  bool cooperative = false;
};

template <typename... Parameters>
void launch_programmatic(Context& context, const char* name, void (*kernel)(Parameters...),
                         const LaunchShape& shape, std::type_identity_t<Parameters>... arguments) {
  cudaLaunchAttribute attributes[3]{};
  unsigned n_attributes = 0;
  if (has_dependent_launch(kernel)) {
    attributes[n_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n_attributes++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[n_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[n_attributes++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.cooperative) {
    attributes[n_attributes].id = cudaLaunchAttributeCooperative;
    attributes[n_attributes++].val.cooperative = 1;
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
void launch_programmatic(Context& context, const char* name, void (*kernel)(Parameters...),
                         dim3 grid, int threads, std::type_identity_t<Parameters>... arguments) {
  launch_programmatic(context, name, kernel, LaunchShape{grid, threads}, arguments...);
}

}  // namespace sluice::impl::cuda
