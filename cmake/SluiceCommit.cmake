# Writes the header OUTPUT with the commit of the checkout SOURCE, where it differs from what the file
# has. A script: every build runs it (src/core/CMakeLists.txt), so that the commit is not that of the
# last configuration.
#   cmake -D SOURCE=… -D OUTPUT=… -P SluiceCommit.cmake
cmake_minimum_required(VERSION 3.25)
set(commit "")
find_package(Git QUIET)
# A source tree inside of another project's checkout has no commit of its own.
if(Git_FOUND AND EXISTS ${SOURCE}/.git)
  execute_process(
    COMMAND ${GIT_EXECUTABLE} -c safe.directory=* describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT commit MATCHES "^[0-9a-f]+(-dirty)?$")
  set(commit "")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT "#define SLUICE_SOURCE_COMMIT \"@commit@\"\n")
