// A command as a user would type it, for the `command_line` of results.json.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl {

// The words with spaces between, quoted where a shell would read them as something else: pasted
// into bash, zsh or ksh they come back byte for byte. Always one line of valid UTF-8.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace sluice::impl
