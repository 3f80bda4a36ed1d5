// --plan: a plan from a file, in every command that can follow one, in place of the choices
// that other flags make.

#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/linear_options.h"
#include "eval/sidecar_bases.h"
#include "model/model.h"
#include "plan/plan_file.h"

namespace sluice::impl::cli {

CLI::Option* add_plan_option(CLI::App& command, std::string& path);
// --plan, and --always: commands that run dense where why_dense() (plan/plan_file.h) has a reason.
void add_auto_plan_options(CLI::App& command, std::string& path, bool& always);

// What flags ask for: a plan, or choices.
struct WantedAcceleration {
  std::string plan = {};  // its path, or empty
  std::vector<UniformAttention> attention = {};
  std::vector<UniformLinear> linear = {};
  LinearFlags linear_flags = {};  // for the bases
};

// The same, read and compared with the model.
struct Acceleration {
  std::vector<UniformChoice> choices = {};  // none: dense. Of a plan, its heading: kinds and name
  std::optional<PlanFile> plan = {};
  std::optional<SidecarBases> bases = {};
  std::string model_sha256 = {};  // empty where nothing had to be compared with it
};

// `text` is the file that it is used on, or empty. Throws CLI::ValidationError for a plan
// together with choices, and Error for a plan of another model and for bases that are missing,
// damaged, or others than the plan was made with.
Acceleration read_acceleration(WantedAcceleration wanted, const Checkpoint& checkpoint,
                               const std::string& text);

// A plan for each choice, with all that they need prepared in the model; note_dense_layers(), once.
// Throws Error where the model, at the context in use, cannot follow one.
std::vector<Plan> prepared_plans(Model& model, const Acceleration& acceleration);

// Says on stderr how many of the layers that are asked to be accelerated stay dense, where any do.
void note_dense_layers(const AttentionPlan& asked, const Model& model);

// Says on stderr, every time, that attention `paper` leaks the future of a causal model.
void warn_of_leaks(const Acceleration& acceleration, bool causal);

// Says on stderr where a run is not like those that its plan was measured in: another number
// format, device or number of threads, or more tokens. n_tokens: read with the plan at a time, at
// most.
void note_other_use(const Acceleration& acceleration, const Model& model, int64_t n_tokens);

}  // namespace sluice::impl::cli
