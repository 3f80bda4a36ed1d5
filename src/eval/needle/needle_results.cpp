#include "eval/needle/needle_results.h"

#include <nlohmann/json.hpp>

#include "plan/plan_json.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

json describe_find(const NeedleFind& find) { return {{"found", find.found}, {"logp", find.logp}}; }

}  // namespace

json needle_results(const ResultsOrigin& origin, const FoundNeedles& needles) {
  const NeedleGrid& grid = needles.grid;
  json results = results_of("needle", origin, needles.n_text_tokens);
  json tasks = json::array();
  for (const NeedleTask task : grid.tasks) tasks.push_back(task_name(task));
  results["settings"] = {{"tasks", std::move(tasks)},
                         {"context", grid.contexts},
                         {"depths", grid.n_depths},
                         {"cases", grid.n_cases},
                         {"seed", grid.seed}};
  int64_t n_dense_found = 0;
  results["cases"] = json::array();
  for (const NeedleCase& found : needles.cases) {
    n_dense_found += found.dense.found;
    json runs = json::array();
    for (const NeedleFind& run : found.runs) runs.push_back(describe_find(run));
    results["cases"].push_back({{"task", task_name(found.options.task)},
                                {"n_tokens", found.options.context},
                                {"depth", found.options.depth},
                                {"seed", found.options.seed},
                                {"answer", found.prompt.answer},
                                {"dense", describe_find(found.dense)},
                                {"runs", std::move(runs)}});
  }
  json runs = json::array();
  for (size_t i = 0; i < needles.choices.size(); ++i) {
    const NeedleSummary summary = summarise_needles(needles.cases, i);
    runs.push_back({{"label", needles.labels[i]},
                    {"settings", describe_choice(needles.choices[i], origin.model.plan_shape())},
                    {"found", summary.n_found},
                    {"lost", summary.lost.size()}});
  }
  results["summary"] = {
      {"n_cases", needles.cases.size()}, {"dense_found", n_dense_found}, {"runs", std::move(runs)}};
  return results;
}

}  // namespace sluice::impl
