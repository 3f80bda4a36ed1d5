#include "api/backends.h"

#include "core/error.h"

namespace sluice::impl::api {

impl::DType dtype_of(sluice::DType dtype) {
  switch (dtype) {
    case sluice::DType::kF32:
      return impl::DType::kF32;
    case sluice::DType::kBF16:
      return impl::DType::kBF16;
  }
  throw Error("the number format is none", "DType::kF32 or DType::kBF16");
}

std::unique_ptr<Backend> make_backend(sluice::Device device, sluice::DType dtype, int process) {
  switch (device) {
    case sluice::Device::kCpu:
      return make_cpu_backend(dtype_of(dtype));
    case sluice::Device::kCuda:
      return make_cuda_backend_for(dtype_of(dtype), process);
    case sluice::Device::kReference:
      return make_reference_backend(dtype_of(dtype));
  }
  throw Error("the device is none", "Device::kCpu or Device::kCuda");
}

std::optional<DType> weight_type(sluice::Weights weights) {
  switch (weights) {
    case sluice::Weights::kAsStored:
      return std::nullopt;
    case sluice::Weights::kF32:
      return DType::kF32;
    case sluice::Weights::kBF16:
      return DType::kBF16;
    case sluice::Weights::kQ8_0:
      return DType::kQ8_0;
    case sluice::Weights::kQ4_0:
      return DType::kQ4_0;
    case sluice::Weights::kQ4_1:
      return DType::kQ4_1;
    case sluice::Weights::kQ5_0:
      return DType::kQ5_0;
    case sluice::Weights::kQ5_1:
      return DType::kQ5_1;
    case sluice::Weights::kQ4_K:
      return DType::kQ4_K;
    case sluice::Weights::kQ5_K:
      return DType::kQ5_K;
    case sluice::Weights::kQ6_K:
      return DType::kQ6_K;
  }
  throw Error("the type of the weights is none", "Weights::kAsStored, or one of the types");
}

}  // namespace sluice::impl::api
