// One function per subcommand: adds its flags and returns what to run when it is chosen.

#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace sluice::cli {

using Run = std::function<void()>;

Run add_inspect(CLI::App& program);
Run add_generate(CLI::App& program);
Run add_eval(CLI::App& program);
Run add_analyze(CLI::App& program);
Run add_calibrate(CLI::App& program);

}  // namespace sluice::cli
