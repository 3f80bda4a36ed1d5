// Where attention on the caller's own numbers runs, and what several of them share there.

#pragma once

#include <memory>

#include "sluice/model.h"

namespace sluice {

// A GPU and a stream of work on it that the caller has.
struct CudaStream {
  int device = 0;          // as CUDA counts them
  void* stream = nullptr;  // a cudaStream_t; null is CUDA's default stream
};

// A device with its scratch memory and, on a GPU, its stream of work: what the Attentions of all
// layers and sequences of a model share. Copies are the same device. A device and its Attentions
// are for one thread at a time.
class SLUICE_API AttentionDevice {
 public:
  // dtype: of keys, values, queries and products. Throws Error for a device that is not there.
  explicit AttentionDevice(Device device, DType dtype = DType::kF32);
  // All work goes to the caller's stream, which must exist until the device and its Attentions are
  // gone, or another stream is in use. The current device of the thread stays what it is. Throws
  // Error where there is no such GPU, and in a library that was built without CUDA.
  explicit AttentionDevice(const CudaStream& stream, DType dtype = DType::kBF16);

  // From now on work goes to this stream of the same GPU, after all that was asked for before.
  // Waits for nothing. Throws Error for a device that has no stream of the caller's.
  void use_stream(void* stream);

  Device kind() const;
  int ordinal() const;  // of the GPU; 0 for others
  DType dtype() const;

  struct SLUICE_LOCAL State;  // of the library

 private:
  friend struct Access;
  std::shared_ptr<State> state_;
};

}  // namespace sluice
