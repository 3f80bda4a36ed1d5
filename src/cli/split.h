// sluice generate on the ranks of a launcher (`mpirun -n N`), each with some of the model's layers.

#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "cli/options/options.h"
#include "model/stage.h"

namespace sluice::impl::cli {

// --split: how the ranks share a model.
CLI::Option* add_split_option(CLI::App& command, std::string& split);

// Runs a command on all ranks: the first prints and writes files, the others do neither. A rank
// that fails ends all of them with one message. Changes the options of a rank accordingly, and
// divides the machine's cores between its ranks where the launcher and the user left them all to
// each.
void run_on_ranks(Communicator& ranks, CommonOptions& options,
                  const std::function<void()>& command);

// What the first rank reads from a pipe: launchers connect it to no other.
std::string text_of_first(Communicator& ranks, const std::function<std::string()>& read);

// This rank's share; nullptr on one rank.
std::shared_ptr<Stage> stage_of(Communicator& ranks, const Checkpoint& checkpoint,
                                const CommonOptions& options);

// Says what each rank of a divided model has and sent. All ranks call it.
void say_ranks(const Model& model, bool quiet);

}  // namespace sluice::impl::cli
