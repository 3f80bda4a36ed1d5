// sluice generate on the ranks of a launcher (`mpirun -n N`), each with a part of the model.

#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/options/options.h"
#include "model/model.h"

namespace sluice::impl::cli {

// --split: how the ranks share a model.
void add_split_option(CLI::App& command, std::string& split);

// This rank's part by --split; a whole model on one rank.
RankPart rank_part(Communicator& ranks, const Checkpoint& checkpoint, const CommonOptions& options,
                   const std::string& split);

// Throws Error where ranks that must have the same bits compute differently. All ranks call it.
void check_ranks(const Model& model);

// Says what each rank of a divided model has and sent. All ranks call it.
void say_ranks(const Model& model, bool quiet);

}  // namespace sluice::impl::cli
