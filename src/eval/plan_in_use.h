// A plan file in use: with the bases that it needs, compared with a model, and prepared in it.

#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "eval/sidecar_bases.h"
#include "model/model.h"
#include "plan/plan_file.h"

namespace sluice::impl {

struct PlanInUse {
  PlanFile file;
  std::optional<SidecarBases> bases = {};
  std::string model_sha256 = {};
};

// A plan read from `path` for a model, to be used on a text (empty: on no file). Reads every byte
// of the checkpoint for its sha256, unless that is known. Throws Error for a plan of another model,
// and for bases that are missing, damaged, or others than the plan was made with.
PlanInUse plan_in_use(PlanFile file, const std::filesystem::path& path,
                      const Checkpoint& checkpoint, const std::filesystem::path& text,
                      std::string known_sha256 = {});

// The plan, with all that it needs prepared in the model. Throws Error where the model, at the
// context in use, cannot follow it.
Plan prepare_plan(Model& model, const Plan& plan, const std::optional<SidecarBases>& bases);

// What results call a plan from a file: its kinds, and the name of the file.
UniformChoice heading_of(const Plan& plan, const std::filesystem::path& path);

// Throws Error, beginning with `label`, for a plan that shows tokens what follows them.
void check_generates(const Plan& plan, const std::string& label);

// A path of bases as it is written into a plan at plan_path: as seen from there. Throws Error for
// bases that are not in the plan's folder.
std::string bases_seen_from(const std::filesystem::path& bases,
                            const std::filesystem::path& plan_path);

}  // namespace sluice::impl
