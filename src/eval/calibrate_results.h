// The results.json of `calibrate`: docs/results.md.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/calibrate.h"
#include "eval/results.h"

namespace sluice::impl {

// Sums over groups: what inheritance saved, by operations and, with `compare`, by time.
struct CalibrationTotals {
  double work = 0, fresh_work = 0, seconds = 0, fresh_seconds = 0;
  std::optional<double> largest_loss;  // of energy, against a fresh basis; none was inherited: null
  int64_t n_inherited = 0, n_tried = 0;

  explicit CalibrationTotals(const Calibration& calibration);
  double work_saved() const { return 1 - work / fresh_work; }
};

nlohmann::json calibrate_results(const ResultsOrigin& origin, const CalibrateOptions& options,
                                 const Calibration& calibration);

}  // namespace sluice::impl
