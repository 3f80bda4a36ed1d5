#include "api/backends.h"

#include "core/error.h"

namespace sluice::impl::api {
namespace {

impl::DType dtype_of(sluice::DType dtype) {
  switch (dtype) {
    case sluice::DType::kF32:
      return impl::DType::kF32;
    case sluice::DType::kBF16:
      return impl::DType::kBF16;
  }
  throw Error("the number format is none", "DType::kF32 or DType::kBF16");
}

}  // namespace

std::unique_ptr<Backend> make_backend(sluice::Device device, sluice::DType dtype) {
  switch (device) {
    case sluice::Device::kCpu:
      return make_cpu_backend(dtype_of(dtype));
    case sluice::Device::kCuda:
      return make_cuda_backend(dtype_of(dtype));
    case sluice::Device::kReference:
      return make_reference_backend(dtype_of(dtype));
  }
  throw Error("the device is none", "Device::kCpu or Device::kCuda");
}

}  // namespace sluice::impl::api
