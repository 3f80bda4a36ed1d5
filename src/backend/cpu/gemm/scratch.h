// Memory that a thread keeps from product to product.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor.h"

namespace sluice::impl::cpu::gemm {

// Aligned, so that loads of whole cache lines cross none.
class Scratch {
 public:
  // What was there is lost where it grows.
  std::byte* at_least(int64_t bytes) {
    if (bytes > bytes_) {
      bytes_ = 0;
      memory_ = {};  // not both at a time
      memory_ = host_buffer(DType::kF32, {(bytes + 3) / 4});
      bytes_ = bytes;
    }
    return memory_.view().bytes();
  }

 private:
  Buffer memory_;
  int64_t bytes_ = 0;
};

}  // namespace sluice::impl::cpu::gemm
