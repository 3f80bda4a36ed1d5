// Flags that choose what the blocks' linear layers do, the same in every command that can do more
// than dense.

#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/sidecar_bases.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "plan/plan.h"

namespace sluice::impl::cli {

struct LinearFlags {
  std::vector<std::string> kinds;
  std::vector<int64_t> ranks;
  std::vector<double> epsilons;
  std::optional<int64_t> adaptive;
  std::string bases;
};

// --linear, --rank, --epsilon, --adaptive and --bases. lists: the first three take several values
// with commas.
void add_linear_options(CLI::App& command, LinearFlags& flags, bool lists);

// Every combination of the values given; none for dense layers. Throws CLI::ValidationError for a
// flag that would have no effect and for gsi without bases. A rank of 0 stands for the bases' own.
// joint: selection needs bases too.
std::vector<UniformLinear> linear_choices(const LinearFlags& flags, bool joint);

// Every combination of both axes, without the one that is dense in both.
std::vector<UniformChoice> combined(const std::vector<UniformAttention>& attention,
                                    const std::vector<UniformLinear>& linear);

// The bases that the flags name, checked against the model; nothing where they name none. `text` is
// the file that they are used on, or empty. Ranks of 0 are filled in.
std::optional<SidecarBases> read_bases_of(const LinearFlags& flags, const Checkpoint& checkpoint,
                                          const std::string& text,
                                          std::vector<UniformLinear>& choices);
// Says on stderr when bases were calibrated on the text that they are now judged on.
void warn_of_same_text(const std::optional<SidecarBases>& bases);

// Plans of the choices, with all that they need prepared in the model.
std::vector<Plan> prepared_plans(Model& model, const std::vector<UniformChoice>& choices,
                                 const std::optional<SidecarBases>& bases);

// A choice for people: "gsi, rank 64, epsilon 0.1".
std::string linear_text(const UniformLinear& choice);
// Both axes, or the name of a plan file.
std::string choice_text(const UniformChoice& choice, const PlanShape& shape);

}  // namespace sluice::impl::cli
