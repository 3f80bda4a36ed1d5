# Text files inside the program, so that it needs none of them at run time:
#
#   sluice_embed_text(out.cpp HEADER report/page_text.h NAMESPACE sluice::impl
#     NAME kPageStyle FILES page.css
#     NAME kPageScript FILES a.js b.js)
#
# defines what the header declares, each an `extern const std::string_view`. Several files of one
# name stand one after another. A changed file configures the build anew, which writes the source
# only if it differs.

function(sluice_embed_text output)
  set(definitions "")
  set(mode "")
  set(name "")
  foreach(word IN LISTS ARGN)
    if(word MATCHES "^(HEADER|NAMESPACE|NAME|FILES)$")
      set(mode ${word})
    elseif(mode STREQUAL "HEADER")
      set(header ${word})
    elseif(mode STREQUAL "NAMESPACE")
      set(namespace ${word})
    elseif(mode STREQUAL "NAME")
      set(name ${word})
      list(APPEND names ${name})
    else()
      cmake_path(ABSOLUTE_PATH word)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${word})
      file(READ ${word} hex HEX)
      string(APPEND bytes_${name} "${hex}")
    endif()
  endforeach()
  foreach(name IN LISTS names)
    string(LENGTH "${bytes_${name}}" digits)
    math(EXPR size "${digits} / 2")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes_${name}}")
    string(APPEND definitions
      "static const unsigned char ${name}Bytes[] = {\n${bytes}};\n"
      "const std::string_view ${name}(reinterpret_cast<const char*>(${name}Bytes), ${size});\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT
"// Made by cmake/SluiceEmbed.cmake.
#include \"@header@\"

namespace @namespace@ {
@definitions@
}  // namespace @namespace@
")
endfunction()
