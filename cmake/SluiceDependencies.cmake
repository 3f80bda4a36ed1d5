# Every dependency is a Debian/Ubuntu package; scripts/install-deps installs them.

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
# Eigenproblems and float64 products; Debian's OpenBLAS has LAPACK inside.
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp REQUIRED)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(onednn_default ON)
else()
  set(onednn_default OFF)
endif()
option(SLUICE_ONEDNN "Multiply matrices through oneDNN" ${onednn_default})
if(SLUICE_ONEDNN)
  find_package(dnnl REQUIRED)
endif()
