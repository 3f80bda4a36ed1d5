// Tensors as TMA sees them: bf16, in boxes of 64 columns, with the swizzle that
// the tensor cores want.

#pragma once

#include <cuda.h>

#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda {

struct MapShape {
  const void* data;
  int64_t sizes[3];    // columns first
  int64_t strides[2];  // bytes, of the second and the third axis
  int boxes[2];        // along these
};
CUtensorMap make_map(const MapShape& shape);

}  // namespace sluice::impl::cuda
