// sluice generate on the ranks of a launcher (`mpirun -n N`), each with some of the model's layers.

#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/options/options.h"
#include "model/stage.h"

namespace sluice::impl::cli {

// --split: how the ranks share a model.
void add_split_option(CLI::App& command, std::string& split);

// This rank's share; nullptr on one rank.
std::shared_ptr<Stage> stage_of(Communicator& ranks, const Checkpoint& checkpoint,
                                const CommonOptions& options);

// Says what each rank of a divided model has and sent. All ranks call it.
void say_ranks(const Model& model, bool quiet);

}  // namespace sluice::impl::cli
