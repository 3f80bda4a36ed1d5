// Tables 1, 2, 4 and 5 of the paper: one profile, layer by layer.

#include <fmt/format.h>

#include "cli/analyze/analyze_tables.h"

namespace sluice::impl::cli {
namespace {

std::string pair_name(size_t layer) { return fmt::format("{}-{}", layer - 1, layer); }
Cell paper_label(std::string what) { return words(std::move(what) + " paper"); }

// The rows of the paper's table for a layer, which it may not show.
template <typename Row, typename Add>
void add_paper_rows(std::span<const Row> rows, size_t layer, const Add& add) {
  for (const Row& row : rows)
    if (static_cast<size_t>(row.layer) == layer) add(row);
}

TextTable coherence_table(const AnalyzeReport& report, const Profile& profile) {
  TextTable table(
      fmt::format("Table 1. Jaccard index of the independent sets of neighbouring layers; random: "
                  "of random sets of the size of {}",
                  report.leading_kind().name),
      {"layers", "r(l)", "r(l+1)", "Jaccard", "common", "random"});
  const PaperModel* paper = comparable_paper(report, profile);
  for (size_t l = 1; l < profile.layers.size(); ++l) {
    const SetFigures& now = profile.layers[l].sets[kIndependentSet];
    table.add({words(pair_name(l)), cell(now.n_inherited, kCount), cell(now.n_reps, kCount),
               cell(now.jaccard_prev, kShare), cell(now.intersection_prev, kCount),
               cell(profile.layers[l].sets[profile.random_set()].jaccard_prev, kShare)});
    if (paper != nullptr)
      add_paper_rows(paper->coherence, l - 1, [&](const PaperModel::Coherence& row) {
        table.add({paper_label(pair_name(l)), cell(int64_t{row.n_reps}),
                   cell(int64_t{row.n_reps_next}), cell(row.jaccard, kShare),
                   cell(int64_t{row.intersection}), no_value()});
      });
  }
  return table;
}

// Empty where no cascade was asked for: the other rules inherit nothing.
TextTable turnover_table(const AnalyzeReport& report, const Profile& profile) {
  TextTable table(
      fmt::format("Table 2. Turnover of {}. r inherited: layer l; r cascade, which the paper's "
                  "Table 2 calls r_inherit, and r independent: layer l+1",
                  report.leading_kind().name),
      {"layers", "r inherited", "r cascade", "r independent", "adds", "removes", "turnover"});
  if (report.leading() != kCascadeSet) return table;
  const PaperModel* paper = comparable_paper_cascade(report, profile);
  for (size_t l = 1; l < profile.layers.size(); ++l) {
    const SetFigures& now = profile.layers[l].sets[kCascadeSet];
    table.add({words(pair_name(l)), cell(now.n_inherited, kCount), cell(now.n_reps, kCount),
               cell(profile.layers[l].sets[kIndependentSet].n_reps, kCount),
               cell(now.additions, kCount), cell(now.removals, kCount),
               cell(now.turnover, kPercent)});
    if (paper != nullptr)
      add_paper_rows(paper->turnovers, l, [&](const PaperModel::Turnover& row) {
        table.add({paper_label(pair_name(l)), no_value(), cell(int64_t{row.n_reps_cascade}),
                   cell(int64_t{row.n_reps_independent}), cell(int64_t{row.additions}),
                   cell(int64_t{row.removals}), cell(row.turnover, kPercent)});
      });
  }
  return table;
}

TextTable count_table(const AnalyzeReport& report, const Profile& profile) {
  TextTable table("Table 4. Independent representatives", {"layer", "r", "r/T", "compression"});
  const PaperModel* paper = comparable_paper(report, profile);
  const auto n = static_cast<double>(profile.n_tokens);
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const RunningMean& n_reps = profile.layers[l].sets[kIndependentSet].n_reps;
    table.add({words(fmt::format("{}", l)), cell(n_reps, kCount),
               cell(n_reps, {.decimals = 3, .factor = 1 / n}),
               cell(n / n_reps.mean(), {.decimals = 1, .unit = "x"})});
    if (paper != nullptr)
      add_paper_rows(paper->counts, l, [&](const PaperModel::Count& row) {
        table.add({paper_label(fmt::format("{}", l)), cell(int64_t{row.n_reps}),
                   cell(row.n_reps / n, {.decimals = 3}),
                   cell(n / row.n_reps, {.decimals = 1, .unit = "x"})});
      });
  }
  return table;
}

// A row of the paper's Table 5. Its cascade is shown only where the profile has the same rule.
std::vector<Cell> paper_row(const PaperModel::Layer& row, bool same_rule) {
  const auto& change = row.change;
  const bool changed = same_rule && change;
  return {paper_label(fmt::format("{}", row.layer)),
          cell(int64_t{row.n_reps_independent}),
          no_value(),
          same_rule ? cell(int64_t{row.n_reps_cascade}) : no_value(),
          change ? cell(change->jaccard_prev, kShare) : no_value(),
          changed ? cell(int64_t{change->additions}) : no_value(),
          changed ? cell(int64_t{change->removals}) : no_value(),
          changed ? cell(change->turnover, kWholePercent) : no_value()};
}

TextTable full_table(const AnalyzeReport& report, const Profile& profile) {
  const std::string rule = report.leading_kind().name;
  TextTable table(
      fmt::format("Table 5. All layers: independent, greedy and {} sets; Jaccard of neighbouring "
                  "independent sets; adds, rem and turnover of {}",
                  rule, rule),
      {"layer", "r ind", "r greedy", "r " + rule, "Jaccard", "adds", "rem", "turnover"});
  const PaperModel* paper = comparable_paper(report, profile);
  const bool same_rule = comparable_paper_cascade(report, profile) != nullptr;
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const std::vector<SetFigures>& sets = profile.layers[l].sets;
    const SetFigures& leading = sets[report.leading()];
    table.add({words(fmt::format("{}", l)), cell(sets[kIndependentSet].n_reps, kCount),
               cell(sets[kGreedySet].n_reps, kCount), cell(leading.n_reps, kCount),
               cell(sets[kIndependentSet].jaccard_prev, kShare), cell(leading.additions, kCount),
               cell(leading.removals, kCount), cell(leading.turnover, kPercent)});
    if (paper != nullptr)
      add_paper_rows(paper->layers, l,
                     [&](const PaperModel::Layer& row) { table.add(paper_row(row, same_rule)); });
  }
  return table;
}

}  // namespace

std::vector<TextTable> layer_tables(const AnalyzeReport& report, const Profile& profile) {
  return {coherence_table(report, profile), turnover_table(report, profile),
          count_table(report, profile), full_table(report, profile)};
}

}  // namespace sluice::impl::cli
