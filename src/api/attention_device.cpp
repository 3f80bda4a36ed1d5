#include "sluice/attention_device.h"

#include "api/backends.h"
#include "api/state.h"

namespace sluice {

std::shared_ptr<void> AttentionDevice::State::enter() const {
  impl::SharedDevice* shared = backend->shared_device();
  return shared == nullptr ? nullptr : shared->enter();
}

AttentionDevice::AttentionDevice(Device device, DType dtype)
    : state_(new State{
          .backend = impl::api::make_backend(device, dtype), .kind = device, .dtype = dtype}) {}

AttentionDevice::AttentionDevice(const CudaStream& stream, DType dtype)
    : state_(new State{.backend = impl::make_cuda_backend_at(impl::api::dtype_of(dtype),
                                                             {stream.device, stream.stream}),
                       .kind = Device::kCuda,
                       .dtype = dtype,
                       .ordinal = stream.device,
                       .has_stream = true}) {}

void AttentionDevice::use_stream(void* stream) {
  if (!state_->has_stream)
    throw Error("this device has no stream of the caller's", "AttentionDevice of a CudaStream");
  const auto current = state_->enter();
  state_->backend->shared_device()->use_stream(stream);
}

Device AttentionDevice::kind() const { return state_->kind; }
int AttentionDevice::ordinal() const { return state_->ordinal; }
DType AttentionDevice::dtype() const { return state_->dtype; }

}  // namespace sluice
