// The man page sluice(1), of the texts that --help prints.

#pragma once

#include <string>
#include <vector>

#include "cli/manual/describe.h"

namespace sluice::impl::cli {

// In the language of man(7). description: of the program.
std::string man_page(const std::string& description, const std::vector<CommandText>& commands);

}  // namespace sluice::impl::cli
