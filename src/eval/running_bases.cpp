#include "eval/running_bases.h"

#include <nlohmann/json.hpp>

#include "subspace/eigen.h"
#include "subspace/running.h"

namespace sluice::impl {

double RunningTotals::updates_saved() const {
  return fresh_updates == 0 ? 0
                            : 1 - static_cast<double>(updates) / static_cast<double>(fresh_updates);
}

RunningTotals running_totals(const RunningTrack& track, BasisInput input) {
  RunningTotals out;
  double work = 0, fresh_work = 0;
  for (const RunningFigures& group : track.groups) {
    if (group.layer == 0 || group.input != input) continue;
    ++out.n_bases;
    out.updates += group.updates;
    out.fresh_updates += group.rank;
    out.bases_updated += group.updates > 0 ? 1 : 0;
    out.energy += group.energy;
    out.fresh_energy += group.fresh_energy;
    work += group.work;
    fresh_work += group.fresh_work;
  }
  if (out.n_bases > 0) {
    out.energy /= static_cast<double>(out.n_bases);
    out.fresh_energy /= static_cast<double>(out.n_bases);
    out.work_saved = 1 - work / fresh_work;
  }
  return out;
}

RunningBases::RunningBases(const std::vector<double>& thresholds) : before_(thresholds.size()) {
  for (const double threshold : thresholds) tracks_.push_back({threshold, {}});
}

void RunningBases::add(const Group& group, const std::vector<double>& moment) {
  if (tracks_.empty()) return;
  const RunningBasis fresh =
      run_basis({.a = moment, .d = group.d, .k = group.rank, .before = {}, .threshold = 0});
  for (size_t i = 0; i < tracks_.size(); ++i) {
    std::vector<double>& before = before_[i][group.input];
    RunningBasis made = run_basis({.a = moment,
                                   .d = group.d,
                                   .k = group.rank,
                                   .before = before,
                                   .threshold = tracks_[i].threshold});
    const double fresh_work = eigen_work(group.d, group.rank);
    tracks_[i].groups.push_back(
        {.layer = group.layer,
         .input = group.input,
         .rank = group.rank,
         .updates = made.updates,
         .residual = made.residual,
         .energy = made.energy,
         .fresh_energy = fresh.energy,
         .work = before.empty() ? fresh_work : running_work(group.d, group.rank, made.updates > 0),
         .fresh_work = fresh_work});
    before = std::move(made.vectors);
  }
}

nlohmann::json running_json(const std::vector<RunningTrack>& tracks) {
  nlohmann::json out = nlohmann::json::array();
  for (const RunningTrack& track : tracks) {
    nlohmann::json groups = nlohmann::json::array();
    for (const RunningFigures& group : track.groups)
      groups.push_back({{"layer", group.layer},
                        {"input", basis_input_name(group.input)},
                        {"updates", group.updates},
                        {"residual", group.residual},
                        {"energy", group.energy},
                        {"fresh_energy", group.fresh_energy},
                        {"work_saved", 1 - group.work / group.fresh_work}});
    out.push_back({{"threshold", track.threshold}, {"groups", std::move(groups)}});
  }
  return out;
}

}  // namespace sluice::impl
