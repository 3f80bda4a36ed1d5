#include "eval/plan_in_use.h"

#include "core/error.h"
#include "core/quote.h"
#include "eval/results.h"
#include "model/shapes.h"

namespace sluice::impl {

namespace fs = std::filesystem;

PlanInUse plan_in_use(PlanFile file, const fs::path& path, const Checkpoint& checkpoint,
                      const fs::path& text, std::string known_sha256) {
  PlanInUse out{.file = std::move(file), .model_sha256 = std::move(known_sha256)};
  if (out.file.bases) {
    out.bases = read_sidecar(bases_path(*out.file.bases, path), checkpoint, text);
    // It has been compared with the checkpoint's.
    out.model_sha256 = out.bases->bases.model_sha256;
  }
  if (out.model_sha256.empty()) out.model_sha256 = model_sha256(checkpoint);
  const ModelSpec& spec = checkpoint.spec();
  const PlanShape shape{.n_layers = spec.n_layers,
                        .n_kv_heads = spec.n_kv_heads,
                        .causal = spec.causal,
                        .windows = {},
                        .context = spec.max_positions};
  const PlanTarget target{.sha256 = out.model_sha256,
                          .shape = shape,
                          .linear = linear_shape_of(spec),
                          .bases = out.bases ? &out.bases->bases : nullptr};
  check_plan_file(out.file, path.string(), target);
  return out;
}

UniformChoice heading_of(const Plan& plan, const fs::path& path) {
  UniformChoice choice;
  choice.file = path.filename().string();
  for (const LayerPlan& layer : plan.attention.layers) {
    if (layer.mode != AttentionMode::kDense) choice.attention.mode = layer.mode;
    if (layer.cache != CacheKind::kExact) choice.attention.cache = layer.cache;
  }
  for (const LayerLinearPlan& layer : plan.linear.layers)
    for (const GroupPlan& group : layer.groups)
      if (group.kind != LinearKind::kDense) choice.linear.kind = group.kind;
  return choice;
}

Plan prepare_plan(Model& model, const Plan& plan, const std::optional<SidecarBases>& bases) {
  if (bases) model.prepare_selection(bases->bases);
  model.prepare_linear(plan.linear, bases ? &bases->bases : nullptr);
  check_plan(plan.attention, model.plan_shape());
  Plan out = plan;
  out.attention = fitted(std::move(out.attention), model.plan_shape());
  return out;
}

void check_generates(const Plan& plan, const std::string& label) {
  if (has_paper(plan.attention))
    throw Error(label + ": attention paper shows tokens what follows them and cannot generate",
                "a plan with keys or copy in its place");
}

std::string bases_seen_from(const fs::path& bases, const fs::path& plan_path) {
  const fs::path seen = fs::proximate(fs::absolute(bases), fs::absolute(plan_path).parent_path());
  if (leaves_folder(seen))
    throw Error(path_label(bases) + ": is not in the folder of the plan " + path_label(plan_path),
                "a plan reads no files outside of its folder: put the bases there");
  return seen.string();
}

}  // namespace sluice::impl
