#include "cli/needle_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace sluice::impl::cli {
namespace {

constexpr size_t kMostNamed = 10;  // lost needles of a plan; results.json has all

int64_t count_dense(std::span<const NeedleCase> cases) {
  return std::count_if(cases.begin(), cases.end(),
                       [](const NeedleCase& found) { return found.dense.found; });
}

// "97.0 ± 1.7%".
Cell accuracy(int64_t n_found, std::span<const NeedleCase> cases) {
  const FoundShare found = found_share(n_found, std::ssize(cases));
  Cell shown = cell(found.share, kPercent);
  shown.deviation = cell(found.standard_error, kPercent).text;
  return shown;
}

std::string where(const NeedleCase& lost) {
  const std::string task = lost.options.task == NeedleTask::kNeedle
                               ? ""
                               : fmt::format("{} ", task_name(lost.options.task));
  return fmt::format("{}T={} depth {:.2f} seed {}", task, lost.options.context, lost.options.depth,
                     lost.options.seed);
}

std::string lost_text(const std::vector<const NeedleCase*>& lost) {
  if (lost.empty()) return "";
  std::vector<std::string> named;
  for (const NeedleCase* found : std::span(lost).first(std::min(lost.size(), kMostNamed)))
    named.push_back(where(*found));
  const std::string more =
      lost.size() > kMostNamed ? fmt::format(" and {} more", lost.size() - kMostNamed) : "";
  return fmt::format("; lost: {}{}", fmt::join(named, ", "), more);
}

}  // namespace

TextTable needle_cases_table(std::span<const NeedleCase> cases, const NeedleLabels& labels) {
  std::vector<std::string> columns{"task", "tokens", "depth", "seed", "dense", "log p"};
  for (const std::string& label : labels) columns.insert(columns.end(), {label, "log p"});
  TextTable table("needles found, and log p of the answer", columns, 0);
  for (const NeedleCase& found : cases) {
    std::vector<Cell> row{words(std::string(task_name(found.options.task))),
                          cell(found.options.context), cell(found.options.depth, {.decimals = 2}),
                          words(std::to_string(found.options.seed))};
    const auto add = [&](const NeedleFind& find) {
      row.insert(row.end(), {words(find.found ? "found" : "no"), cell(find.logp, {.decimals = 2})});
    };
    add(found.dense);
    for (const NeedleFind& run : found.runs) add(run);
    table.add(std::move(row));
  }
  return table;
}

TextTable needle_accuracy_table(std::span<const NeedleCase> cases, const NeedleLabels& labels,
                                const NeedleGrid& grid) {
  std::vector<std::string> columns{"task", "tokens", "cases", "dense"};
  columns.insert(columns.end(), labels.begin(), labels.end());
  TextTable table("found, ± standard error", columns, 1);
  // Cases of one task and length follow each other.
  const auto n = static_cast<size_t>(grid.n_depths * grid.n_cases);
  for (const NeedleTask task : grid.tasks)
    for (const int64_t context : grid.contexts) {
      const std::span<const NeedleCase> group = cases.first(n);
      cases = cases.subspan(n);
      std::vector<Cell> row{words(std::string(task_name(task))), cell(context),
                            cell(std::ssize(group)), accuracy(count_dense(group), group)};
      for (size_t i = 0; i < labels.size(); ++i)
        row.push_back(accuracy(summarise_needles(group, i).n_found, group));
      table.add(std::move(row));
    }
  return table;
}

std::string needle_totals(std::span<const NeedleCase> cases, const NeedleLabels& labels) {
  const int64_t n_dense = count_dense(cases);
  const std::string dense = fmt::format("{} of {}", n_dense, cases.size());
  std::string text;
  std::vector<std::string> losers;
  for (size_t i = 0; i < labels.size(); ++i) {
    const NeedleSummary summary = summarise_needles(cases, i);
    text += fmt::format("{}: found {} of {}; dense {}{}\n", labels[i], summary.n_found,
                        summary.n_cases, dense, lost_text(summary.lost));
    if (!summary.lost.empty())
      losers.push_back(fmt::format("{} by {}", summary.lost.size(), labels[i]));
  }
  if (labels.empty() || n_dense == 0)
    return text + fmt::format("dense finds {} needles{}\n", dense,
                              labels.empty() ? "" : ": nothing can be lost");
  if (losers.empty()) return text + "every needle that dense finds is found\n";
  return text + fmt::format("lost of the {} needles that dense finds: {}\n", n_dense,
                            fmt::join(losers, "; "));
}

}  // namespace sluice::impl::cli
