#include "cli/options/plan_option.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "cli/terminal/say.h"
#include "core/threads.h"
#include "eval/results.h"
#include "io/quote.h"
#include "model/shapes.h"

namespace sluice::impl::cli {
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

CLI::Option* add_plan_option(CLI::App& command, std::string& path) {
  return command.add_option("--plan", path,
                            "What every layer, head and matrix does: a file from sluice tune");
}

void add_auto_plan_options(CLI::App& command, std::string& path, bool& always) {
  command
      .add_flag("--always", always, "Follow the plan where dense was measured to be faster, too")
      ->needs(add_plan_option(command, path));
}

Acceleration read_acceleration(WantedAcceleration wanted, const Checkpoint& checkpoint,
                               const std::string& text) {
  Acceleration out;
  if (wanted.plan.empty()) {
    out.bases = read_bases_of(wanted.linear_flags, checkpoint, text, wanted.linear);
    out.choices = combined(wanted.attention, wanted.linear);
  } else {
    if (!wanted.attention.empty() || !wanted.linear.empty())
      throw CLI::ValidationError(
          "--plan says what attention and linear layers do, leave --attention and --linear out");
    out.plan = read_plan_file(wanted.plan);
    out.choices = {heading_of(out.plan->plan, wanted.plan)};
    if (out.plan->bases)
      out.bases = read_sidecar(bases_path(*out.plan->bases, wanted.plan), checkpoint, text);
  }
  // That of the bases is the checkpoint's: it has been compared.
  if (out.bases) out.model_sha256 = out.bases->bases.model_sha256;
  if (!out.plan) return out;
  if (out.model_sha256.empty()) out.model_sha256 = model_sha256(checkpoint);
  // Before minutes of loading.
  const ModelSpec& spec = checkpoint.spec();
  check_plan_file(*out.plan, wanted.plan,
                  {.sha256 = out.model_sha256,
                   .shape = {.n_layers = spec.n_layers,
                             .n_kv_heads = spec.n_kv_heads,
                             .causal = spec.causal,
                             .windows = {},
                             .context = spec.max_positions},
                   .linear = linear_shape_of(spec),
                   .bases = out.bases ? &out.bases->bases : nullptr});
  return out;
}

std::vector<Plan> prepared_plans(Model& model, const Acceleration& acceleration) {
  const std::optional<PlanFile>& file = acceleration.plan;
  const std::optional<SidecarBases>& bases = acceleration.bases;
  if (!file) return prepared_plans(model, acceleration.choices, bases);
  if (bases) model.prepare_selection(bases->bases);
  model.prepare_linear(file->plan.linear, bases ? &bases->bases : nullptr);
  check_plan(file->plan.attention, model.plan_shape());
  return {file->plan};
}

void warn_of_leaks(const Acceleration& acceleration, bool causal) {
  const bool paper =
      (acceleration.plan && has_paper(acceleration.plan->plan.attention)) ||
      std::any_of(acceleration.choices.begin(), acceleration.choices.end(),
                  [](const UniformChoice& choice) {
                    return choice.file.empty() && choice.attention.mode == AttentionMode::kPaper;
                  });
  if (paper && causal)
    say("sluice: attention paper shows a causal model tokens that are still to come; its figures "
        "are not a language model's\n");
}

void note_other_use(const Acceleration& acceleration, const Model& model, int64_t n_tokens) {
  if (!acceleration.plan) return;
  const PlanFile& file = *acceleration.plan;
  const std::string& name = acceleration.choices.front().file;
  if (n_tokens > file.context)
    say("sluice: {} was measured with up to {} tokens, here are up to {}: its loss may be "
        "another\n",
        path_label(name), file.context, n_tokens);
  if (!file.measured) return;
  std::vector<std::string> there, here;
  const auto compare = [&](const char* word, const std::string& measured, const std::string& now) {
    if (measured == now) return;
    there.push_back(word + path_label(measured));
    here.push_back(word + now);
  };
  const auto threads_text = [](int64_t n) {
    return fmt::format("{} thread{}", n, n == 1 ? "" : "s");
  };
  const Backend& backend = model.backend();
  compare("with ", threads_text(file.measured->threads), threads_text(threads()));
  compare("in ", file.measured->dtype, std::string(dtype_name(backend.compute_dtype())));
  compare("on ", file.measured->device, device_text(backend));
  if (!there.empty())
    say("sluice: {} was measured {}, here it runs {}: what is faster may differ\n",
        path_label(name), fmt::join(there, " "), fmt::join(here, " "));
}

std::string why_dense(const PlanFile& file, int64_t n_prompt, int64_t n_predict) {
  if (file.plan.attention.all_dense() && file.plan.linear.all_dense()) return "is dense";
  if (n_prompt > file.context)
    return fmt::format("was measured with up to {} tokens (--always runs it)", file.context);
  // Nothing was measured, or time is not what it is for.
  if (!file.auto_from || !is_time(file.objective)) return "";
  const auto reaches = [&](const std::optional<int64_t>& from) {
    return from && n_prompt >= *from;
  };
  if (reaches(file.auto_from->prefill_from) &&
      (n_predict <= 1 || reaches(file.auto_from->decode_from)))
    return "";
  return "was not measured faster at this length (--always runs it)";
}

}  // namespace sluice::impl::cli
