#include "backend/cuda/runtime/cublas.h"

#include <dlfcn.h>

#include <string>

#include "core/error.h"

namespace sluice::impl::cuda {
namespace {

const std::string kFile = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);

template <typename F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (function == nullptr) throw Error(kFile + " has no " + name, "use --device cpu");
}

CublasLt load() {
  // Where the loader looks, and where it was when this was built.
  void* library = ::dlopen(kFile.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string reason = ::dlerror();
    library = ::dlopen((SLUICE_CUBLAS_FOLDER "/" + kFile).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw Error(
          "cuBLASLt cannot be loaded: " + reason,
          "install CUDA " + std::to_string(CUBLAS_VER_MAJOR) + "'s libcublas, or use --device cpu");
  }
  CublasLt found{};
  find(library, "cublasLtCreate", found.create);
  find(library, "cublasLtDestroy", found.destroy);
  find(library, "cublasLtGetStatusString", found.status_string);
  find(library, "cublasLtMatmul", found.matmul);
  find(library, "cublasLtMatmulAlgoGetHeuristic", found.algo_get_heuristic);
  find(library, "cublasLtMatmulDescCreate", found.desc_create);
  find(library, "cublasLtMatmulDescDestroy", found.desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", found.desc_set_attribute);
  find(library, "cublasLtMatmulPreferenceCreate", found.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", found.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", found.preference_set_attribute);
  find(library, "cublasLtMatrixLayoutCreate", found.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", found.layout_destroy);
  return found;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt loaded = load();
  return loaded;
}

}  // namespace sluice::impl::cuda
