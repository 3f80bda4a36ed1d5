# Interface targets carry warnings, and the sanitizers that code of ours is built with; one function
# makes a folder's library.

add_library(sluice_flags INTERFACE)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC spends a seventh of its time on collecting garbage unless it may take half a gigabyte first.
  target_compile_options(sluice_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=300;--param=ggc-min-heapsize=524288>")
endif()
target_compile_options(sluice_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>"
  # 554: a conversion of a tensor to its own type, which is there for the other kind of tensor.
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;-diag-suppress=554>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of overlap inside its own std::string operator+.
  target_compile_options(sluice_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  # GCC 13 suspects every function that takes a string and returns a reference into a container.
  target_compile_options(sluice_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>)
endif()
if(SLUICE_WERROR)
  target_compile_options(sluice_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()
add_library(sluice_instrumented INTERFACE)
target_link_libraries(sluice_instrumented INTERFACE sluice_flags)
if(SLUICE_SANITIZE)
  set(instrumented -O1 -g1 -UNDEBUG -fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
  target_compile_options(sluice_instrumented INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${instrumented}>")
  target_link_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()
# Instrumented code of COLD libraries takes a third less compiling without optimising.
add_library(sluice_instrumented_cold INTERFACE)
target_link_libraries(sluice_instrumented_cold INTERFACE sluice_instrumented)
if(SLUICE_SANITIZE)
  target_compile_options(sluice_instrumented_cold INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
endif()
if(SLUICE_COVERAGE)
  target_compile_options(sluice_instrumented INTERFACE
    -O1 -UNDEBUG -fprofile-instr-generate -fcoverage-mapping)
  target_link_options(sluice_flags INTERFACE -fprofile-instr-generate)
endif()

# How many files are compiled together. Most of a file's compiling is templates of the standard library,
# {fmt} and nlohmann's JSON, which files that are compiled together share: src/eval takes 87 seconds in
# sevens and 46 in twenty-fives. 1 compiles each file by itself, which is faster after a change of one.
set(SLUICE_BATCH 25 CACHE STRING "Source files that are compiled together (1: none)")

# sluice_compile_together(TARGET): its .cpp files in batches, but for those with compile options or
# definitions of their own or the property SKIP_UNITY_BUILD_INCLUSION. CMake's own UNITY_BUILD writes paths
# of the checkout into the batches, so that ccache would compile all of a second clone anew.
function(sluice_compile_together target)
  if(SLUICE_BATCH GREATER 1)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL sluice_write_batches [[${target}]])")
  endif()
endfunction()

function(sluice_write_batches target)
  get_target_property(sources ${target} SOURCES)
  set(joined "")
  foreach(source IN LISTS sources)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(source MATCHES "^[^$/]*[a-z0-9_/]*\\.cpp$" AND NOT options AND NOT definitions AND NOT alone)
      list(APPEND joined ${source})
    endif()
  endforeach()
  list(LENGTH joined n_joined)
  if(n_joined LESS 2)
    return()
  endif()
  list(REMOVE_ITEM sources ${joined})
  math(EXPR n_batches "(${n_joined} + ${SLUICE_BATCH} - 1) / ${SLUICE_BATCH}")
  math(EXPR size "(${n_joined} + ${n_batches} - 1) / ${n_batches}")
  foreach(batch RANGE 1 ${n_batches})
    math(EXPR first "(${batch} - 1) * ${size}")
    list(SUBLIST joined ${first} ${size} files)
    sluice_write_batch(${target} ${batch} cpp "${files}" batch_source)
    list(APPEND sources ${batch_source})
  endforeach()
  sluice_set_batches(${target} "${sources}")
endfunction()

# sluice_set_batches(TARGET SOURCES): its sources become these, batches among them.
function(sluice_set_batches target sources)
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

# sluice_write_batch(TARGET NUMBER EXTENSION FILES RESULT): a file that includes FILES; RESULT is its path.
function(sluice_write_batch target number extension files result)
  set(text "// Made by cmake/SluiceTarget.cmake.\n")
  foreach(file IN LISTS files)
    cmake_path(ABSOLUTE_PATH file NORMALIZE)
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(APPEND text "#include \"${file}\"\n")
  endforeach()
  set(path ${CMAKE_CURRENT_BINARY_DIR}/${target}_batch_${number}.${extension})
  file(CONFIGURE OUTPUT ${path} CONTENT "${text}" @ONLY)
  set(${result} ${path} PARENT_SCOPE)
endfunction()

# sluice_deal_kernels(TARGET N): its .cu files in N batches, each with every N-th file in the order of their
# paths. Five of the six seconds that nvcc takes for a small file without optimising are headers. Kernels of
# one folder share a namespace and may use one name twice, so N is at least the files of one folder.
function(sluice_deal_kernels target n_batches)
  get_target_property(sources ${target} SOURCES)
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "^[^$].*\\.cu$")
  list(REMOVE_ITEM sources ${kernels})
  list(SORT kernels)
  set(next 0)
  foreach(kernel IN LISTS kernels)
    math(EXPR batch "${next} % ${n_batches}")
    math(EXPR next "${next} + 1")
    list(APPEND dealt_${batch} ${kernel})
  endforeach()
  math(EXPR last "${n_batches} - 1")
  foreach(batch RANGE ${last})
    sluice_write_batch(${target} ${batch} cu "${dealt_${batch}}" batch_source)
    list(APPEND sources ${batch_source})
  endforeach()
  sluice_set_batches(${target} "${sources}")
endfunction()

# sluice_library(core SOURCES a.cpp b.cpp DEPENDS sluice_x PRIVATE_DEPENDS fmt::fmt)
# PLAIN: without sanitizers in any build.
# Release builds compile with -O2. HOT: with -O3, where arithmetic is. COLD: with -O1, where time is not
# spent and three quarters of the compiling are enough; under a sanitizer with -O0.
function(sluice_library folder)
  cmake_parse_arguments(ARG "PLAIN;HOT;COLD" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(sluice_${folder} STATIC ${ARG_SOURCES})
  sluice_compile_together(sluice_${folder})
  if(ARG_HOT)
    set(level 3)
  elseif(ARG_COLD)
    set(level 1)
  else()
    set(level 2)
  endif()
  target_compile_options(sluice_${folder} PRIVATE
    $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O${level}>)
  target_include_directories(sluice_${folder} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  if(ARG_PLAIN)
    set(flags sluice_flags)
  elseif(ARG_COLD)
    set(flags sluice_instrumented_cold)
  else()
    set(flags sluice_instrumented)
  endif()
  target_link_libraries(sluice_${folder} PUBLIC ${ARG_DEPENDS} PRIVATE ${flags} ${ARG_PRIVATE_DEPENDS})
endfunction()
