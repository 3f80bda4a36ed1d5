#include "cli/options/plan_option.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "cli/terminal/say.h"
#include "core/quote.h"
#include "core/threads.h"
#include "eval/plan_in_use.h"
#include "eval/results.h"

namespace sluice::impl::cli {
CLI::Option* add_plan_option(CLI::App& command, std::string& path) {
  return command.add_option("--plan", path,
                            "What every layer, head and matrix does: a file from sluice tune");
}

void add_auto_plan_options(CLI::App& command, std::string& path, bool& always) {
  command
      .add_flag("--always", always,
                "Follow the plan where dense was measured to be faster, and beyond its context, "
                "too;\nplans for memory or reads are followed whatever their speed")
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
    PlanInUse used = plan_in_use(read_plan_file(wanted.plan), wanted.plan, checkpoint, text);
    out.choices = {heading_of(used.file.plan, wanted.plan)};
    out.plan = std::move(used.file);
    out.bases = std::move(used.bases);
    out.model_sha256 = std::move(used.model_sha256);
  }
  // That of the bases is the checkpoint's: it has been compared.
  if (out.bases) out.model_sha256 = out.bases->bases.model_sha256;
  return out;
}

std::vector<Plan> prepared_plans(Model& model, const Acceleration& acceleration) {
  const std::optional<PlanFile>& file = acceleration.plan;
  const std::optional<SidecarBases>& bases = acceleration.bases;
  if (file) {
    note_dense_layers(file->plan.attention, model);
    return {prepare_plan(model, file->plan, bases)};
  }
  std::vector<Plan> plans = prepared_plans(model, acceleration.choices, bases);
  for (const UniformChoice& choice : acceleration.choices) {
    if (choice.attention.mode == AttentionMode::kDense) continue;
    PlanShape shape = model.plan_shape();
    shape.windows.clear();
    shape.capped = false;
    note_dense_layers(uniform_plan(choice.attention, shape), model);
    break;  // of others it says the same
  }
  return plans;
}

void note_dense_layers(const AttentionPlan& asked, const Model& model) {
  const PlanShape shape = model.plan_shape();
  int64_t n_dense = 0;
  for (int64_t layer = 0; layer < std::ssize(asked.layers); ++layer)
    if (asked.layers[static_cast<size_t>(layer)].mode != AttentionMode::kDense &&
        shape.stays_dense(layer))
      ++n_dense;
  if (n_dense == 0) return;
  if (shape.capped)
    say("sluice: {} caps attention scores, which dense attention alone does: all layers stay "
        "dense\n",
        model.spec().family);
  else
    say("sluice: {} of {} layers have a sliding window shorter than the context of {} and stay "
        "dense\n",
        n_dense, shape.n_layers, shape.context);
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

}  // namespace sluice::impl::cli
