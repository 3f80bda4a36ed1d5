// Running bases over the layers of a model (subspace/running.h): directions updated, and the energy
// kept, for several thresholds, over the second moments that `calibrate` sums up anyway.

#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "subspace/basis.h"

namespace sluice::impl {

// One layer's input at one threshold.
struct RunningFigures {
  int64_t layer = 0;
  BasisInput input = BasisInput::kAttentionInput;
  int64_t rank = 0;
  int64_t updates = 0;  // of its directions; a fresh basis has `rank`
  double residual = 0;  // share of the energy that the basis of the layer before leaves out
  double energy = 0;    // share that the running basis captures
  double fresh_energy = 0;
  double work = 0, fresh_work = 0;  // multiply-adds, by running_work and eigen_work
};

struct RunningTrack {
  double threshold = 0;
  std::vector<RunningFigures> groups;  // in order of depth

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(threshold, groups);
  }
};

// Sums over groups. The first layer is fresh at every threshold, and counts in none of these.
struct RunningTotals {
  int64_t updates = 0, fresh_updates = 0;  // directions
  int64_t bases_updated = 0, n_bases = 0;
  double energy = 0, fresh_energy = 0;  // means
  double work_saved = 0;

  double updates_saved() const;
};
// Of the groups of one input.
RunningTotals running_totals(const RunningTrack& track, BasisInput input);

class RunningBases {
 public:
  explicit RunningBases(const std::vector<double>& thresholds);

  // The next layer's second moment of an input, (d, d) by its upper triangle.
  struct Group {
    int64_t layer;
    BasisInput input;
    int64_t d, rank;
  };
  void add(const Group& group, const std::vector<double>& moment);

  std::vector<RunningTrack> take() { return std::move(tracks_); }

 private:
  std::vector<RunningTrack> tracks_;
  // Per track, the basis of the layer before for each input, (rank, d).
  std::vector<std::map<BasisInput, std::vector<double>>> before_;
};

// The `running` of results.json: docs/results.md, "calibrate".
nlohmann::json running_json(const std::vector<RunningTrack>& tracks);

}  // namespace sluice::impl
