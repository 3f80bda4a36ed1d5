#include "backend/cuda/runtime/cublas.h"

#include <string>

#include "core/shared_library.h"

namespace sluice::impl::cuda {
namespace {

CublasLt load() {
  const std::string major = std::to_string(CUBLAS_VER_MAJOR), file = "libcublasLt.so." + major;
  // Where the loader looks, and where it was when this was built.
  const std::string files[] = {file, SLUICE_CUBLAS_FOLDER "/" + file};
  const SharedLibrary library("cuBLASLt", files,
                              "install CUDA " + major + "'s libcublas, or use --device cpu");
  CublasLt found{};
  library.find("cublasLtCreate", found.create);
  library.find("cublasLtDestroy", found.destroy);
  library.find("cublasLtGetStatusString", found.status_string);
  library.find("cublasLtMatmul", found.matmul);
  library.find("cublasLtMatmulAlgoGetHeuristic", found.algo_get_heuristic);
  library.find("cublasLtMatmulDescCreate", found.desc_create);
  library.find("cublasLtMatmulDescDestroy", found.desc_destroy);
  library.find("cublasLtMatmulDescSetAttribute", found.desc_set_attribute);
  library.find("cublasLtMatmulPreferenceCreate", found.preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", found.preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", found.preference_set_attribute);
  library.find("cublasLtMatrixLayoutCreate", found.layout_create);
  library.find("cublasLtMatrixLayoutDestroy", found.layout_destroy);
  return found;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt loaded = load();
  return loaded;
}

}  // namespace sluice::impl::cuda
