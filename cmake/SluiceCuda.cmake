# Whether this build has the CUDA backend: SLUICE_HAS_CUDA, and the language with it.

set(SLUICE_HAS_CUDA OFF)
if(NOT SLUICE_CUDA STREQUAL "OFF")
  # Machine code for Ampere and its kin, and for Hopper with its matrix instructions; whatever is
  # newer compiles the first one's intermediate code when it starts.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # CMake 3.25 does not know that nvcc has C++20.
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(SLUICE_HAS_CUDA ON)
  elseif(SLUICE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SLUICE_CUDA is ON and there is no CUDA compiler (nvcc) in PATH")
  endif()
endif()
message(STATUS "CUDA backend: ${SLUICE_HAS_CUDA}")
