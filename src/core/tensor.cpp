#include "core/tensor.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace sluice::impl {

Buffer host_buffer(DType dtype, Shape shape) {
  constexpr int64_t kAlignment = 64;
  const int64_t bytes = checked_mul(shape.numel(), element_bytes(dtype));
  const int64_t rounded =
      std::max(kAlignment, checked_add(bytes, kAlignment - 1) / kAlignment * kAlignment);
  // More than the machine has would be granted and then end the program while it is cleared.
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  void* data = memory > 0 && rounded > memory
                   ? nullptr
                   : std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
  if (data == nullptr)
    throw Error("cannot allocate " + std::to_string(rounded) + " bytes",
                "a smaller --context or --dtype bf16 needs less memory");
  std::memset(data, 0, static_cast<size_t>(rounded));
  return Buffer(data, dtype, shape, Device::kCpu, [](void* p) { std::free(p); });
}

void copy_rows(const ConstTensor& from, const Tensor& to) {
  SLUICE_CHECK(from.shape() == to.shape() && from.dtype() == to.dtype());
  const int64_t size = element_bytes(from.dtype());
  for (int64_t row = 0; row < from.rows(); ++row)
    std::memcpy(to.bytes() + row * to.row_stride() * size,
                from.bytes() + row * from.row_stride() * size,
                static_cast<size_t>(from.row_elements() * size));
}

}  // namespace sluice::impl
