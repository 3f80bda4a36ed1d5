# Interface targets carry warnings, and the sanitizers that code of ours is built with; one function
# makes a folder's library.

add_library(sluice_flags INTERFACE)
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
if(SLUICE_COVERAGE)
  target_compile_options(sluice_instrumented INTERFACE
    -O1 -UNDEBUG -fprofile-instr-generate -fcoverage-mapping)
  target_link_options(sluice_flags INTERFACE -fprofile-instr-generate)
endif()

# sluice_library(core SOURCES a.cpp b.cpp DEPENDS sluice_x PRIVATE_DEPENDS fmt::fmt)
# PLAIN: without sanitizers in any build.
# TOGETHER: several files at a time, where most of their compiling is the same headers' templates.
function(sluice_library folder)
  cmake_parse_arguments(ARG "PLAIN;TOGETHER" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(sluice_${folder} STATIC ${ARG_SOURCES})
  target_include_directories(sluice_${folder} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(sluice_${folder} PUBLIC ${ARG_DEPENDS} PRIVATE
    $<IF:$<BOOL:${ARG_PLAIN}>,sluice_flags,sluice_instrumented> ${ARG_PRIVATE_DEPENDS})
  set_target_properties(sluice_${folder} PROPERTIES
    UNITY_BUILD ${ARG_TOGETHER} UNITY_BUILD_BATCH_SIZE 7)
endfunction()
