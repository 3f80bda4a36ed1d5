// Standard input and output in place of files: `-`, and prompts from a pipe.

#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace sluice::impl::cli {

// Lets every command take `-` where it takes a file to read (-f, results files) or to write
// (--json, --html, -o). Standard input is copied to memory, so that it can be read again. Where a
// file goes to standard output, all else that is printed goes to stderr.
void accept_streams(CLI::App& program);

// Whether an output that was given as `-` has this path.
bool is_standard_output(const std::string& path);

// What comes by a pipe, less one line end behind it. `what` is what it is for. Throws
// CLI::ValidationError where standard input is a terminal or empty.
std::string piped_text(const std::string& what);

}  // namespace sluice::impl::cli
