// Several small arrays of the host, sent to the device as one.

#pragma once

#include <cstring>
#include <vector>

#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda {

class Upload {
 public:
  // Where in the memory that send returns the values will be.
  template <typename T>
  int64_t add(std::span<const T> values) {
    const auto at = static_cast<size_t>(round_up(static_cast<int64_t>(bytes_.size()), 256));
    bytes_.resize(at + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    return static_cast<int64_t>(at);
  }
  DeviceArray<std::byte> send(const std::shared_ptr<Context>& context) const {
    return {context, std::span<const std::byte>(bytes_)};
  }

 private:
  std::vector<std::byte> bytes_;
};

// The array at `at` of such memory.
template <typename T>
const T* array_at(const DeviceArray<std::byte>& memory, int64_t at) {
  return reinterpret_cast<const T*>(memory.data() + at);
}

}  // namespace sluice::impl::cuda
