// OpenBLAS, loaded when it is first needed. When it is loaded it starts threads and takes memory
// for each, and under a limit on memory it tries that for ever; a program that is linked with it
// would do so before main.

#pragma once

#include <cblas.h>

#include <cstddef>

namespace sluice::impl::blas {

struct OpenBlas {
  decltype(&openblas_set_num_threads) set_num_threads;
  decltype(&cblas_dsyrk) dsyrk;
  decltype(&cblas_dsymm) dsymm;
  decltype(&cblas_dgemm) dgemm;

  // LAPACK: Debian's OpenBLAS has the routines, but no header for them. Lengths of strings come
  // last.
  void (*dgeqrf)(const int* m, const int* n, double* a, const int* lda, double* tau, double* work,
                 const int* lwork, int* info);
  void (*dorgqr)(const int* m, const int* n, const int* k, double* a, const int* lda,
                 const double* tau, double* work, const int* lwork, int* info);
  void (*dsytrd)(const char* uplo, const int* n, double* a, const int* lda, double* d, double* e,
                 double* tau, double* work, const int* lwork, int* info, size_t uplo_length);
  void (*dsterf)(const int* n, double* d, double* e, int* info);
  void (*dstemr)(const char* jobz, const char* range, const int* n, double* d, double* e,
                 const double* vl, const double* vu, const int* il, const int* iu, int* m,
                 double* w, double* z, const int* ldz, const int* nzc, int* isuppz, int* tryrac,
                 double* work, const int* lwork, int* iwork, const int* liwork, int* info,
                 size_t jobz_length, size_t range_length);
  void (*dormtr)(const char* side, const char* uplo, const char* trans, const int* m, const int* n,
                 const double* a, const int* lda, const double* tau, double* c, const int* ldc,
                 double* work, const int* lwork, int* info, size_t side_length, size_t uplo_length,
                 size_t trans_length);
};

// On the threads of core/threads.h from now on. Throws Error where it is not installed, or where
// the memory that it takes is not there.
const OpenBlas& openblas();

}  // namespace sluice::impl::blas
