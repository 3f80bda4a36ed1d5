// One function per subcommand: adds its flags and returns what to run when it is chosen, which gets
// the command line as it was typed, quoted for a shell.

#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace sluice::impl::cli {

using Run = std::function<void(const std::string& command_line)>;

Run add_demo(CLI::App& program);
Run add_inspect(CLI::App& program);
Run add_generate(CLI::App& program);
Run add_chat(CLI::App& program);
Run add_tokenize(CLI::App& program);
Run add_eval(CLI::App& program);
Run add_analyze(CLI::App& program);
Run add_needle(CLI::App& program);
Run add_bench(CLI::App& program);
Run add_report(CLI::App& program);
Run add_calibrate(CLI::App& program);
Run add_tune(CLI::App& program);
Run add_completion(CLI::App& program);
Run add_help(CLI::App& program);

// Leaves the limits of numbers out of the help, which says in words what matters of them; who goes
// beyond one is told.
void leave_ranges_out(CLI::App& program);

}  // namespace sluice::impl::cli
