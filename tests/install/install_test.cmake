# What docs/library.md says, step by step: install, then the examples by CMake and by pkg-config.

cmake_minimum_required(VERSION 3.25)

set(work ${BUILD}/install_test)
set(prefix ${work}/prefix)
set(demo ${prefix}/share/sluice/demo)

# run(OUT output COMMAND …): fails the test unless the command does what it should.
function(run)
  cmake_parse_arguments(ARG "" "OUT" "COMMAND" ${ARGN})
  execute_process(COMMAND ${ARG_COMMAND} RESULT_VARIABLE code OUTPUT_VARIABLE output
                  ERROR_VARIABLE errors WORKING_DIRECTORY ${work})
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARG_COMMAND}\nended with ${code}\n${output}${errors}")
  endif()
  if(ARG_OUT)
    set(${ARG_OUT} "${output}" PARENT_SCOPE)
  endif()
endfunction()

function(expect what text pattern)
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "${what} does not match ${pattern}:\n${text}")
  endif()
endfunction()

file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})
run(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/elsewhere)
file(RENAME ${work}/elsewhere ${prefix})  # an installed tree may be moved

set(library ${prefix}/${LIBDIR}/libsluice.so)
foreach(file bin/sluice include/sluice/sluice.h include/sluice/version.h ${LIBDIR}/libsluice.so
        ${LIBDIR}/libsluice.so.${VERSION} ${LIBDIR}/cmake/sluice/sluiceConfig.cmake
        ${LIBDIR}/cmake/sluice/sluiceConfigVersion.cmake ${LIBDIR}/pkgconfig/sluice.pc
        share/sluice/demo/text.txt)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "${file} is not installed")
  endif()
endforeach()
run(COMMAND ${prefix}/bin/sluice --version OUT version)
expect("sluice --version" "${version}" "^sluice ${VERSION}\n$")

# Every header stands alone, and needs nothing but the standard library.
file(GLOB headers ${prefix}/include/sluice/*.h)
foreach(header IN LISTS headers)
  run(COMMAND ${CXX} -std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -fsyntax-only
      -I${prefix}/include -include ${header} -x c++ /dev/null)
  file(READ ${header} text)
  string(REGEX MATCHALL "#include [<\"][^>\"]*" includes "${text}")
  foreach(include IN LISTS includes)
    expect("${header}" "${include}" "^#include (<[a-z_]+$|\"sluice/)")
  endforeach()
endforeach()

# The library shows the names of the headers alone.
run(COMMAND ${NM} -D -C --defined-only ${library} OUT symbols)
expect("symbols" "${symbols}" " T sluice::Model::load")
string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
foreach(symbol IN LISTS symbols)
  set(name " [TVWw] (typeinfo for |typeinfo name for |vtable for )?sluice::")
  expect("a symbol" "${symbol}" "${name}")
  if(symbol MATCHES "${name}impl::")
    message(FATAL_ERROR "${symbol} is the library's own")
  endif()
endforeach()

# CMake.
set(examples ${work}/examples)
run(COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/examples -B ${examples} -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix}
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
run(COMMAND ${CMAKE_COMMAND} --build ${examples})
run(COMMAND ${examples}/generate ${demo}/gpt2-nano "The sea was" OUT answer)
expect("generate" "${answer}" "^The sea was .+\n[0-9]+ tokens after a prompt of [0-9]+, dense\n$")
run(COMMAND ${examples}/perplexity ${demo}/gpt2-nano ${demo}/text.txt OUT figures)
# As `sluice eval` has it, on the same windows.
run(COMMAND ${prefix}/bin/sluice eval -m ${demo}/gpt2-nano -f ${demo}/text.txt -c 1024 --windows 2
    --quiet OUT evaluated)
expect("sluice eval" "${evaluated}" "perplexity [0-9]+\\.[0-9]+ ")
string(REGEX REPLACE ".*perplexity ([0-9]+\\.[0-9]).*" "\\1" dense "${evaluated}")
string(REPLACE "." "\\." dense "${dense}")
expect("perplexity" "${figures}" "^dense: perplexity ${dense}.* over 2048 tokens\n")
expect("perplexity" "${figures}" "KL 0\\.00[0-9]+ .* keys read [1-9][0-9]\\.[0-9]%\n$")
run(COMMAND ${examples}/attention OUT errors)
expect("attention" "${errors}"
       "delta 0 +keys read 10[0-9]\\.[0-9]%, relative error [0-9.]+e-0[67]\n.*delta 0.1 ")

# pkg-config.
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
run(COMMAND ${PKG_CONFIG} --modversion sluice OUT version)
expect("pkg-config --modversion" "${version}" "^${VERSION}\n$")
run(COMMAND ${PKG_CONFIG} --cflags --libs sluice OUT flags)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(COMMAND ${CXX} -std=c++20 -O2 ${SOURCE}/examples/attention.cpp -o ${work}/attention ${flags}
    -Wl,-rpath,${prefix}/${LIBDIR})
run(COMMAND ${work}/attention OUT again)
expect("attention by pkg-config" "${again}" "delta 0 +keys read 10")
