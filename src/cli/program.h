// The program: picks a subcommand, runs it, and reports errors as one line and an exit code
// (0 done, 1 the input or the machine refuses, 2 wrong usage).

#pragma once

namespace sluice::impl::cli {

int run_program(int argc, char** argv);

}  // namespace sluice::impl::cli
