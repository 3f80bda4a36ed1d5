// Joint selection on a text, layer by layer: what share of the pairs coordinates in a basis decide,
// and the time of selection with and without one. docs/algorithm.md, section 5.

#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "eval/analyze/profile.h"
#include "eval/sidecar_bases.h"
#include "eval/text/text_stream.h"
#include "eval/timing.h"
#include "model/model.h"
#include "subspace/basis.h"

namespace sluice::impl {

struct JointOptions {
  SelectRule rule = SelectRule::kCascadeCover;  // the leading set's
  double tau = 0;
  RowSpace space = RowSpace::kNormed;  // not kKey
  int64_t sinks = 0;
  double outlier_ratio = 0;
  int64_t n_tokens = 0;        // of a window
  int64_t n_windows = 4;       // at most
  std::vector<int64_t> ranks;  // each at most that of the bases

  // How tokens are selected, without a basis; before: the selector of the layer above, or none.
  SelectorSpec selector(const Model& model, const Selector* before) const;
};

// Times of selection with a basis: medians of all runs, and what selection without one took over
// them, run by run.
struct JointTimes {
  double seconds = 0;
  Ratio speedup{1, 1, 1};
};
struct JointRankTimes {
  JointTimes always;      // from the first token on, paying or not
  JointTimes where_pays;  // as long as it is judged to pay
};

// Selection at one layer, as means over windows.
struct JointFigures {
  int64_t rank = 0;
  double energy = 0;             // of the rows the basis was made from, that it captures
  RunningMean pairs, products;   // considered, and multiplied at full width
  RunningMean dropped_fraction;  // of the pairs considered
  RunningMean dropped_fraction_where_pays;
  JointRankTimes times;
};
struct JointLayer {
  RunningMean n_reps;
  RunningMean products;  // without a basis, as the next
  double seconds = 0;    // median
  std::vector<JointFigures> ranks;
};

struct JointProfile {
  JointOptions options;
  int64_t d_model = 0;
  int64_t n_windows = 0;
  std::vector<JointLayer> layers;
  double seconds = 0;                 // of all layers together, without a basis
  std::vector<JointRankTimes> times;  // the same with one, by rank
  // The caller's to fill in; without a path they were made from what follows the windows.
  BasesOrigin bases;
};

// The bases of rows compared in a space.
BasisInput selection_input(RowSpace space);

// Throws Error where a layer has no such basis, or one of too small a rank.
void check_bases(const Bases& bases, int64_t n_layers, const JointOptions& options);

// Bases from windows of the text that follow its first n_skipped tokens.
Bases bases_after(Model& model, TextStream& text, int64_t n_skipped, const JointOptions& options,
                  const std::function<void(double)>& progress);

// Selects over windows from the beginning of the text, with bases that passed check_bases. Should
// sets or owners ever differ with a basis and without, that is an InternalError.
JointProfile profile_joint(Model& model, TextStream& text, const Bases& bases,
                           const JointOptions& options,
                           const std::function<void(double)>& progress);

// The `joint` of results.json.
nlohmann::json describe_joint(const JointProfile& profile);

}  // namespace sluice::impl
