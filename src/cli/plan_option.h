// --plan: a plan from a file, in every command that can follow one.

#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "eval/sidecar_bases.h"
#include "model/model.h"
#include "plan/plan_file.h"

namespace sluice::cli {

void add_plan_option(CLI::App& command, std::string& path);

struct GivenPlan {
  PlanFile file;
  UniformChoice choice;  // for headings: kinds, and the file's name
  std::optional<SidecarBases> bases;
};

// Nothing where no plan is given. `others`: flags beside it say what layers do, which is refused.
// `text` is the file that it is used on, or empty. Throws Error for a plan of another model and for
// bases that are missing or others than it was made with.
std::optional<GivenPlan> read_plan(const std::string& path, bool others,
                                   const Checkpoint& checkpoint, const std::string& text);

// The plan, with all that it needs prepared in the model. Throws Error where the model, at the
// context in use, cannot follow it.
Plan prepared_plan(Model& model, const GivenPlan& given);

// Whether a plan was measured to be faster than dense for a prompt of so many tokens: reading it,
// and generating after it where more than a token is asked for.
bool is_faster(const PlanFile& file, int64_t n_prompt, int64_t n_predict);

}  // namespace sluice::cli
