// Stands in for the CUDA backend in builds without it, so that callers hold no #ifdef.

#include "backend/backend.h"

namespace sluice::impl {

std::unique_ptr<Backend> make_cuda_backend(DType) {
  throw Error("this build has no CUDA backend", "use --device cpu");
}
std::unique_ptr<Backend> make_cuda_backend_for(DType dtype, int) {
  return make_cuda_backend(dtype);
}
std::unique_ptr<Backend> make_cuda_backend_at(DType dtype, const CudaPlace&) {
  return make_cuda_backend(dtype);
}

}  // namespace sluice::impl
