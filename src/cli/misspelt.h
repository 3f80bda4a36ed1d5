// Commands and options that are not known, and those that may have been meant.

#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sluice::impl::cli {

struct Misspelt {
  std::string message;  // empty: all words are known
  std::string hint = {};
};

// The first word of a command line that is no command, or no option of its command.
Misspelt misspelt(const CLI::App& program, const std::vector<std::string>& words);

// sluice help [COMMAND]: prints what --help prints, behind the command where it is named. Of a word
// that is no command it prints nothing and says so.
Misspelt print_help(const CLI::App& program, const std::string& name);

}  // namespace sluice::impl::cli
