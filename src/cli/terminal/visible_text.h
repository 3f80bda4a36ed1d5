// Text of a model or a file, made safe for a terminal.

#pragma once

#include <string>
#include <string_view>

namespace sluice::impl::cli {

// Control characters but line ends and tabs, and characters that change the direction of text,
// become U+FFFD: a vocabulary could hold the escape sequences of a terminal.
std::string visible_text(std::string_view text);

// Prints text of a model. A terminal gets it as visible_text, a file or pipe as it is.
void print_model_text(std::string_view text);

}  // namespace sluice::impl::cli
