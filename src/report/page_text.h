// The files of page/, embedded when the program is built.

#pragma once

#include <string_view>

namespace sluice::impl {

extern const std::string_view
    kPageHtml;  // with <!--STYLE-->, <!--DATA--> and <!--SCRIPT--> in place of elements
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace sluice::impl
