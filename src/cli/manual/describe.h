// Commands and options of the program as data, read from CLI11. The man page and the completions of
// shells are made of it.

#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sluice::impl::cli {

struct OptionText {
  std::string short_name;            // "-m", or empty
  std::string long_name;             // "--model"; empty for an argument without a name
  std::string value;                 // what it takes: "FILE"; empty for a flag
  std::vector<std::string> choices;  // of the value; empty: any
  std::string description;
};

struct CommandText {
  std::string name;
  std::string summary;      // the first sentence
  std::string description;  // all of it, with examples in indented lines
  std::vector<OptionText> options;
};

std::vector<CommandText> describe_commands(const CLI::App& program);

}  // namespace sluice::impl::cli
