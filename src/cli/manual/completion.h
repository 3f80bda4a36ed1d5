// Completion of commands, options and values in shells.

#pragma once

#include <string>
#include <vector>

#include "cli/manual/describe.h"

namespace sluice::impl::cli {

// Scripts that the shells read.
std::string bash_completion(const std::vector<CommandText>& commands);
std::string zsh_completion(const std::vector<CommandText>& commands);
std::string fish_completion(const std::vector<CommandText>& commands);

}  // namespace sluice::impl::cli
