// Brings matrices to the device, piece by piece.

#pragma once

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/linear/linear.h"

namespace sluice::impl::cuda::linear {

// One half of a double buffer in pinned memory: while a copy reads one, the host fills the other.
struct PinnedPiece {
  explicit PinnedPiece(int64_t bytes) : host(bytes) {
    check(cudaEventCreateWithFlags(sent.to_set(), cudaEventDisableTiming), "event");
  }
  PinnedPiece(const PinnedPiece&) = delete;
  PinnedPiece& operator=(const PinnedPiece&) = delete;
  ~PinnedPiece() {
    cudaEventSynchronize(sent.get());  // nothing may free memory that a copy still reads
  }
  PinnedBytes host;
  Event sent;
};
constexpr int64_t kPieceBytes = int64_t{16} << 20;

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
