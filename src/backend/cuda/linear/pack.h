// Brings matrices to the device, piece by piece.

#pragma once

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/linear/linear.h"

namespace sluice::impl::cuda::linear {

// Calls take(first, rows) with pieces of the matrix, (n, n_in) f32 on the device, in order. A piece
// may be read by kernels launched within the call, which are done when this returns: kernels read
// weights before those ahead of them have ended (runtime/dependent_launch.cuh).
using TakeRows = std::function<void(int64_t first, ConstTensor rows)>;
void stream_rows(const std::shared_ptr<Context>& context, const MatrixSource& source,
                 const TakeRows& take);

DeviceMatrix pack_matrix(const std::shared_ptr<Context>& context, const MatrixSource& source,
                         DType dtype);
std::unique_ptr<elementwise::DeviceTable> pack_table(const std::shared_ptr<Context>& context,
                                                     const MatrixSource& source);

}  // namespace sluice::impl::cuda::linear
