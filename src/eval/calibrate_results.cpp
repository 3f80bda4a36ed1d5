#include "eval/calibrate_results.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice::impl {
namespace {

nlohmann::json group_json(const GroupFigures& group, const Basis& basis,
                          const std::vector<int64_t>& ranks) {
  nlohmann::json energies = nlohmann::json::array();
  for (size_t i = 0; i < ranks.size(); ++i)
    energies.push_back({{"rank", ranks[i]}, {"energy", group.energies[i]}});
  return {{"layer", group.layer},
          {"input", basis_input_name(group.input)},
          {"d", basis.d},
          {"rank", basis.rank},
          {"energy", basis.energy()},
          {"energies", energies},
          {"effective_rank_90", or_null(effective_rank(basis.spectrum, 0.90))},
          {"effective_rank_95", or_null(effective_rank(basis.spectrum, 0.95))},
          {"effective_rank_99", or_null(effective_rank(basis.spectrum, 0.99))},
          {"spectrum", basis.spectrum},
          {"inherited", group.inherited},
          {"iterations", group.iterations},
          {"start_energy", or_null(group.start_energy)},
          {"work_saved", group.work_saved()},
          {"seconds", group.seconds},
          {"fresh_energy", or_null(group.fresh_energy)},
          {"fresh_seconds", or_null(group.fresh_seconds)}};
}

const char* name_of(Inheritance inherit) {
  if (inherit == Inheritance::kNever) return "never";
  return inherit == Inheritance::kAlways ? "always" : "where paying";
}

}  // namespace

CalibrationTotals::CalibrationTotals(const Calibration& calibration) {
  for (const GroupFigures& group : calibration.groups) {
    work += group.work;
    fresh_work += group.fresh_work;
    seconds += group.seconds;
    fresh_seconds += group.fresh_seconds.value_or(group.seconds);
    n_inherited += group.inherited ? 1 : 0;
    n_tried += group.iterations > 0 ? 1 : 0;
    if (group.inherited && group.fresh_energy)
      largest_loss =
          std::max(largest_loss.value_or(-1), *group.fresh_energy - group.energies.back());
  }
}

nlohmann::json calibrate_results(const ResultsOrigin& origin, const CalibrateOptions& options,
                                 const Calibration& calibration) {
  const CalibrationTotals totals(calibration);
  nlohmann::json results = results_of("calibrate", origin, calibration.bases.n_tokens);
  results["settings"] = {{"rank", options.ranks},
                         {"context", origin.model.context()},
                         {"windows", calibration.n_windows},
                         {"inherit", name_of(options.inherit)},
                         {"memory_bytes", options.memory}};
  results["groups"] = nlohmann::json::array();
  for (size_t i = 0; i < calibration.groups.size(); ++i)
    results["groups"].push_back(
        group_json(calibration.groups[i], calibration.bases.list[i], options.ranks));
  results["summary"] = {{"n_groups", calibration.groups.size()},
                        {"n_inherited", totals.n_inherited},
                        {"n_tried", totals.n_tried},
                        {"work_saved", totals.work_saved()},
                        {"seconds", totals.seconds},
                        {"passes", calibration.n_passes}};
  if (!options.running.empty()) results["running"] = running_json(calibration.running);
  if (options.compare) {
    results["summary"]["fresh_seconds"] = totals.fresh_seconds;
    results["summary"]["largest_energy_loss"] = or_null(totals.largest_loss);
  }
  return results;
}

}  // namespace sluice::impl
