#include "cli/analyze/analyze_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/analyze/analyze_joint.h"
#include "cli/options/plan_option.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/say.h"
#include "core/error.h"
#include "eval/analyze/analyze.h"
#include "eval/results.h"
#include "plan/plan_json.h"
#include "ranks/world.h"
#include "select/rules.h"

namespace sluice::impl::cli {
namespace {

// "3 clusters, 1 window".
std::string heads_text(const LayerPlan& layer) {
  std::vector<std::string> parts;
  for (const HeadKind kind : {HeadKind::kClusters, HeadKind::kWindow, HeadKind::kDense}) {
    const auto n = std::count_if(layer.heads.begin(), layer.heads.end(),
                                 [&](const HeadPlan& head) { return head.kind == kind; });
    if (n > 0) parts.push_back(fmt::format("{} {}", n, kind_name(kind)));
  }
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string selection_text(const LayerPlan& layer) {
  return layer.reuse ? "reused"
                     : fmt::format("{}, {}", rule_name(layer.rule), space_name(layer.space));
}

nlohmann::json results_json(const AnalyzePlanRequest& request, const Acceleration& acceleration,
                            const ResultsOrigin& origin, const std::vector<PlanProfile>& profiles) {
  const Plan& plan = acceleration.plan->plan;
  int64_t n_tokens = 0;  // of the longest pass over the text
  nlohmann::json runs = nlohmann::json::array();
  for (const PlanProfile& profile : profiles) {
    n_tokens = std::max(n_tokens, profile.n_windows * profile.n_tokens);
    runs.push_back(plan_profile_json(profile, plan.attention));
  }
  nlohmann::json results = results_of("analyze", origin, n_tokens);
  results["settings"] = {{"plan", acceleration.choices.front().file},
                         {"context", request.contexts},
                         {"windows", request.n_windows}};
  results["plan"] = describe_plan(plan.attention, origin.model.spec().n_kv_heads);
  results["runs"] = std::move(runs);
  return results;
}

}  // namespace

TextTable plan_layers_table(const PlanProfile& profile, const AttentionPlan& plan) {
  TextTable table(
      fmt::format("Keys read and clusters kept, as shares of what dense attention reads "
                  "and keeps, {} tokens",
                  profile.n_tokens),
      {"layer", "attention", "heads", "window", "keys read", "clusters"}, 3);
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const LayerPlan& layer = plan.layers[l];
    table.add({words(fmt::format("{}", l)), words(std::string(mode_name(layer.mode))),
               words(heads_text(layer)),
               layer.mode == AttentionMode::kKeys ? cell(layer.window) : no_value(),
               cell(profile.layers[l].keys_read, kPercent),
               cell(profile.layers[l].clusters_fraction, kPercent)});
  }
  table.add({words("all"), words("-"), words("-"), no_value(), cell(profile.keys_read, kPercent),
             cell(profile.clusters_fraction, kPercent)});
  return table;
}

TextTable plan_sets_table(const PlanProfile& profile, const AttentionPlan& plan) {
  TextTable table(
      fmt::format(
          "Sets of heads that cluster, {} tokens. turnover: from the set inherited; recall, "
          "missed: against the same layer's independent set; copy error: of attention "
          "outputs copied from owners; above: errors above the bound of the paper's "
          "Proposition 2",
          profile.n_tokens),
      {"layer", "selection", "tau", "r", "turnover", "recall", "missed", "uncovered",
       "owner cos min", "owner cos mean", "copy error", "above"},
      2);
  for (size_t l = 0; l < profile.layers.size(); ++l)
    for (size_t i = 0; i < profile.layers[l].taus.size(); ++i) {
      const SetFigures& set = profile.layers[l].sets[i];
      table.add({words(fmt::format("{}", l)), words(selection_text(plan.layers[l])),
                 words(fmt::format("{}", profile.layers[l].taus[i])), cell(set.n_reps, kCount),
                 cell(set.turnover, kPercent), cell(set.recall, kShare), cell(set.missed, kCount),
                 cell(set.uncovered, kPercent), cell(set.owner_cosine_min, kShare),
                 cell(set.owner_cosine_mean, kShare), cell(set.copy_error, kShare),
                 cell(set.violations_tau, kPercent)});
    }
  return table;
}

void run_analyze_plan(const AnalyzePlanRequest& asked) {
  AnalyzePlanRequest request = asked;
  check_outputs(request.options, {request.file, request.plan});
  check_read_again(request.file);
  const auto checkpoint = open_checkpoint(request.options.model);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  const ModelSpec& spec = checkpoint->spec();
  Acceleration acceleration = read_acceleration({.plan = request.plan}, *checkpoint, request.file);
  PlanFile& file = *acceleration.plan;
  check_profiled_plan(file.plan.attention, spec);
  if (request.contexts.empty()) request.contexts = {std::min(file.context, spec.max_positions)};
  CommonOptions options = request.options;
  options.context = *std::max_element(request.contexts.begin(), request.contexts.end());
  const TextSource source{
      .path = request.file, .separator = request.separator, .tokenizer = *tokenizer};
  {  // a text that is too short is refused before the work
    TextStream text = source.open();
    first_window(text, std::min(options.context, spec.max_positions));
  }
  Model model = load_model(checkpoint, options);
  check_plan(file.plan.attention, model.plan_shape());
  note_dense_layers(file.plan.attention, model);
  file.plan.attention = fitted(std::move(file.plan.attention), model.plan_shape());
  const ProjectionNorms norms = projection_norms(*checkpoint);
  std::vector<PlanProfile> profiles;
  for (const int64_t n_tokens : request.contexts) {
    ProgressBar bar(fmt::format("analyze {} tokens", n_tokens), options.quiet);
    TextStream text = source.open();
    profiles.push_back(profile_plan(
        model, norms, text, file.plan.attention,
        {.n_tokens = n_tokens, .n_windows = request.n_windows, .communicator = &world()},
        [&](double done) { bar.update(done, ""); }));
  }
  note_other_use(acceleration, model, options.context);
  if (options.wants_results())
    write_outputs(results_json(request, acceleration,
                               {.command_line = options.command_line,
                                .checkpoint = *checkpoint,
                                .model = model,
                                .text = request.file,
                                .model_sha256 = acceleration.model_sha256,
                                .n_ranks = world().size()},
                               profiles),
                  options);
  const PlanProfile& first = profiles.front();
  print("{}: the sets of {}; mean ± standard deviation over {} window{}\n",
        checkpoint->path.filename().string(), acceleration.choices.front().file, first.n_windows,
        first.n_windows == 1 ? "" : "s");
  for (const PlanProfile& profile : profiles)
    for (const TextTable& table : {plan_layers_table(profile, file.plan.attention),
                                   plan_sets_table(profile, file.plan.attention)})
      if (!table.empty()) print("\n{}", request.format == "csv" ? table.csv() : table.markdown());
  if (!file.plan.linear.all_dense())
    say("sluice: the plan's gated matrices are not looked at here: sluice inspect lists "
        "them, sluice eval --plan measures what they lose\n");
}

}  // namespace sluice::impl::cli
