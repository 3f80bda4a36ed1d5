// cuBLASLt, loaded when it is first needed. It takes hundreds of megabytes of address space, and a
// program that is linked with it does not start where it is not installed, not even to print help.

#pragma once

#include <cublasLt.h>

namespace sluice::impl::cuda {

// Its functions, under their names without the prefix.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algo_get_heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set_attribute;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_attribute;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
};

// Throws Error where it is not installed.
const CublasLt& cublas_lt();

// For Handle (runtime/device.h).
inline void destroy_handle(cublasLtHandle_t handle) { cublas_lt().destroy(handle); }
inline void destroy_preference(cublasLtMatmulPreference_t preference) {
  cublas_lt().preference_destroy(preference);
}

}  // namespace sluice::impl::cuda
