#include "cli/plan_option.h"

#include <algorithm>
#include <filesystem>

#include "eval/results.h"
#include "model/shapes.h"

namespace sluice::cli {
namespace {

UniformChoice heading_of(const Plan& plan, const std::string& path) {
  UniformChoice choice;
  choice.file = std::filesystem::path(path).filename().string();
  for (const LayerPlan& layer : plan.attention.layers)
    if (layer.mode != AttentionMode::kDense) choice.attention.mode = layer.mode;
  for (const LayerLinearPlan& layer : plan.linear.layers)
    for (const GroupPlan& group : layer.groups)
      if (group.kind != LinearKind::kDense) choice.linear.kind = group.kind;
  return choice;
}

}  // namespace

void add_plan_option(CLI::App& command, std::string& path) {
  command.add_option("--plan", path,
                     "What every layer, head and matrix does: a file from sluice tune");
}

std::optional<GivenPlan> read_plan(const std::string& path, bool others,
                                   const Checkpoint& checkpoint, const std::string& text) {
  if (path.empty()) return {};
  if (others)
    throw CLI::ValidationError(
        "--plan says what attention and linear layers do, leave --attention and --linear out");
  PlanFile file = read_plan_file(path);
  UniformChoice choice = heading_of(file.plan, path);
  GivenPlan given{.file = std::move(file), .choice = std::move(choice), .bases = {}};
  if (given.file.bases)
    given.bases = read_sidecar(bases_path(*given.file.bases, path).string(), checkpoint, text);
  // Before minutes of loading.
  const ModelSpec& spec = checkpoint.spec();
  check_plan_file(
      given.file, path,
      // That of the bases is the checkpoint's: it has been compared.
      {.sha256 = given.bases ? given.bases->bases.model_sha256 : model_sha256(checkpoint),
       .shape = {.n_layers = spec.n_layers,
                 .n_kv_heads = spec.n_kv_heads,
                 .causal = spec.causal,
                 .windows = {},
                 .context = spec.max_positions},
       .linear = linear_shape_of(spec),
       .bases = given.bases ? &given.bases->bases : nullptr});
  return given;
}

Plan prepared_plan(Model& model, const GivenPlan& given) {
  if (given.bases) model.prepare_selection(given.bases->bases);
  model.prepare_linear(given.file.plan.linear, given.bases ? &given.bases->bases : nullptr);
  check_plan(given.file.plan.attention, model.plan_shape());
  return given.file.plan;
}

bool is_faster(const PlanFile& file, int64_t n_prompt, int64_t n_predict) {
  // Nothing was measured, or time is not what it is for.
  if (!file.auto_from || file.objective == PlanObjective::kMemory) return true;
  const auto reaches = [&](const std::optional<int64_t>& from) {
    return from && n_prompt >= *from;
  };
  return reaches(file.auto_from->prefill_from) &&
         (n_predict <= 1 || reaches(file.auto_from->decode_from));
}

}  // namespace sluice::cli
