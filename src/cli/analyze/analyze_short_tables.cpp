#include <fmt/format.h>

#include "cli/analyze/analyze_tables.h"

namespace sluice::impl::cli {

TextTable depth_table(const AnalyzeReport& report) {
  const Profile& profile = report.profiles.front();
  TextTable table(
      fmt::format("Representatives r of {} tokens; Jaccard: shared with the layer before",
                  profile.n_tokens),
      {"layer", "r", "r/T", "Jaccard", "turnover", "cosine to owner"});
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const SetFigures& set = profile.layers[l].sets[report.leading()];
    table.add({words(std::to_string(l)), cell(set.n_reps, {.decimals = 0}),
               cell(set.n_reps.mean() / static_cast<double>(profile.n_tokens), {.decimals = 2}),
               cell(set.jaccard_prev, {.decimals = 2}),
               cell(set.turnover, {.decimals = 0, .factor = 100, .unit = "%"}),
               cell(set.owner_cosine_mean, {.decimals = 3})});
  }
  return table;
}

TextTable cascade_table(const AnalyzeReport& report) {
  const Profile& profile = report.profiles.front();
  TextTable table(fmt::format("Means over layers, ± over {} window{}", profile.n_windows,
                              profile.n_windows == 1 ? "" : "s"),
                  {"set", "r", "Jaccard", "missed, worst layer", "uncovered", "products saved"});
  const std::vector<SetKind> kinds = set_kinds(report.rules);
  for (size_t k = 0; k < kinds.size(); ++k) {
    const SetSummary& set = profile.summaries[k];
    const bool control = kinds[k].rule == SelectRule::kFixed;
    table.add({words(kinds[k].name), cell(set.n_reps, {.decimals = 0}),
               cell(set.jaccard_prev, {.decimals = 2}), cell(set.missed_max, {.decimals = 0}),
               cell(set.uncovered, {.decimals = 1, .factor = 100, .unit = "%"}),
               control ? no_value()
                       : cell(set.savings_computed, {.decimals = 0, .factor = 100, .unit = "%"})});
  }
  return table;
}

}  // namespace sluice::impl::cli
