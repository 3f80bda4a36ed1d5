// cuBLASLt as it is loaded at run time. Neither a GPU nor a driver is needed for what is here.

#include "backend/cuda/runtime/cublas.h"

#include <gtest/gtest.h>

namespace sluice::impl::cuda {
namespace {

TEST(CublasLt, IsLoadedWithEveryFunction) {
  const CublasLt& blas = cublas_lt();
  EXPECT_STRNE(blas.status_string(CUBLAS_STATUS_SUCCESS),
               blas.status_string(CUBLAS_STATUS_ALLOC_FAILED));
  cublasLtMatmulPreference_t preference = nullptr;
  EXPECT_EQ(blas.preference_create(&preference), CUBLAS_STATUS_SUCCESS);
  destroy_preference(preference);
}

}  // namespace
}  // namespace sluice::impl::cuda
