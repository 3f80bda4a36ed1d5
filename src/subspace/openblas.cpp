#include "subspace/openblas.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/shared_library.h"
#include "core/threads.h"

namespace sluice::impl::blas {
namespace {

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

OpenBlas load() {
  check_memory();
  const std::string files[] = {"libopenblas.so.0"};
  const SharedLibrary library("OpenBLAS", files, "install Debian's libopenblas0");
  OpenBlas found{};
  library.find("openblas_set_num_threads", found.set_num_threads);
  library.find("cblas_dsyrk", found.dsyrk);
  library.find("cblas_dsymm", found.dsymm);
  library.find("cblas_dgemm", found.dgemm);
  library.find("dgeqrf_", found.dgeqrf);
  library.find("dorgqr_", found.dorgqr);
  library.find("dsytrd_", found.dsytrd);
  library.find("dsterf_", found.dsterf);
  library.find("dstemr_", found.dstemr);
  library.find("dormtr_", found.dormtr);
  return found;
}

}  // namespace

const OpenBlas& openblas() {
  static const OpenBlas loaded = load();
  loaded.set_num_threads(threads());
  return loaded;
}

}  // namespace sluice::impl::blas
