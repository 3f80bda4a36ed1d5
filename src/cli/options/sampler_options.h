// Flags of commands that generate text: how long, how varied, where it ends.

#pragma once

#include <CLI/CLI.hpp>

#include "model/generate.h"

namespace sluice::impl::cli {

// -n, --temperature, --top-k, --top-p, --min-p, --repetition-penalty, --stop, --seed, --ignore-eos.
void add_sampler_options(CLI::App& command, GenerateOptions& options);

}  // namespace sluice::impl::cli
