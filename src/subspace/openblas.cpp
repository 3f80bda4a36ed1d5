#include "subspace/openblas.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/threads.h"

namespace sluice::impl::blas {
namespace {

constexpr const char* kFile = "libopenblas.so.0";

// OpenBLAS 0.3.21 takes a buffer of up to 64 MiB for each thread and for the caller, and retries
// without end where it cannot be had; a thread's stack takes 8 MiB more.
void check_memory() {
  const size_t n_threads = std::max(1u, std::thread::hardware_concurrency());
  const size_t bytes = (n_threads + 2) * (size_t{72} << 20);
  void* memory =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error("OpenBLAS, which finds eigenvectors, takes up to " + std::to_string(bytes >> 20) +
                    " MiB of address space, more than there is",
                "raise the limit on memory (ulimit -v)");
  ::munmap(memory, bytes);
}

template <typename F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (function == nullptr)
    throw Error(std::string(kFile) + " has no " + name, "install Debian's libopenblas0");
}

OpenBlas load() {
  check_memory();
  void* library = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(std::string("OpenBLAS cannot be loaded: ") + ::dlerror(),
                "install Debian's libopenblas0");
  OpenBlas found{};
  find(library, "openblas_set_num_threads", found.set_num_threads);
  find(library, "cblas_dsyrk", found.dsyrk);
  find(library, "cblas_dsymm", found.dsymm);
  find(library, "cblas_dgemm", found.dgemm);
  find(library, "dgeqrf_", found.dgeqrf);
  find(library, "dorgqr_", found.dorgqr);
  find(library, "dsytrd_", found.dsytrd);
  find(library, "dsterf_", found.dsterf);
  find(library, "dstemr_", found.dstemr);
  find(library, "dormtr_", found.dormtr);
  return found;
}

}  // namespace

const OpenBlas& openblas() {
  static const OpenBlas loaded = load();
  loaded.set_num_threads(threads());
  return loaded;
}

}  // namespace sluice::impl::blas
