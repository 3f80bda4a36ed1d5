// Makes activation bases: runs a model densely over windows of a text, sums up second moments of
// what its linear layers read, and decomposes them. docs/algorithm.md, section 4.
//
// The text runs through the model as often as the moments need memory for: each pass sums up as
// many groups (a layer's input) as fit `memory`, and at least one, in order of depth, so that a
// basis can be inherited from the layer before. What grows with the model besides are the bases
// themselves, which are the result.

#pragma once

#include <functional>
#include <optional>

#include "eval/running_bases.h"
#include "eval/text/text_stream.h"
#include "model/model.h"
#include "ranks/communicator.h"
#include "subspace/basis.h"

namespace sluice::impl {

// When a basis begins with that of the layer before.
enum class Inheritance : uint8_t {
  kWherePaying,  // of rows in the residual stream's coordinates, as long as refining takes half the
                 // work of a fresh decomposition
  kAlways,       // up to 16 iterations, whatever they take
  kNever,
};

struct CalibrateOptions {
  std::vector<BasisInput> inputs;  // distinct
  std::vector<int64_t> ranks;      // the largest is kept, energies are told for each
  int64_t n_windows = 16;          // at most, of the model's context
  Inheritance inherit = Inheritance::kWherePaying;
  bool compare = false;         // make a fresh basis for each inherited one too
  std::vector<double> running;  // also follow running bases of these thresholds
  int64_t memory = int64_t{1} << 30;
  int64_t sinks = 0;         // exempt from selection, and so from its bases
  double outlier_ratio = 0;  // the same
  // That windows, and the groups' moments and bases, are divided over; `memory` is of all together.
  Communicator* communicator = &alone();
};

// How a basis was made.
struct GroupFigures {
  int64_t layer = 0;
  BasisInput input = BasisInput::kAttentionInput;
  std::vector<double> energies;  // per rank asked for
  bool inherited = false;
  int iterations = 0;
  std::optional<double> start_energy;  // that the layer before's basis captures, where it was tried
  double work = 0, fresh_work = 0;     // multiply-adds: done, and of a fresh decomposition
  double seconds = 0;
  std::optional<double> fresh_energy, fresh_seconds;  // with `compare`

  double work_saved() const { return 1 - work / fresh_work; }

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(layer, input, energies, inherited, iterations, start_energy, work, fresh_work, seconds,
            fresh_energy, fresh_seconds);
  }
};

struct Calibration {
  Bases bases;                        // hashes and paths are the caller's to fill in
  std::vector<GroupFigures> groups;   // as bases.list
  std::vector<RunningTrack> running;  // per threshold
  int64_t n_windows = 0, n_passes = 0;
};

// The inputs that a model's linear layers have.
std::vector<BasisInput> linear_inputs(const ModelSpec& spec);

// The largest rank at which inheriting a basis of rows of width d can take fewer operations than a
// fresh decomposition; 0: none.
int64_t largest_paying_rank(int64_t d);

// Throws Error for a rank that is 0 or wider than a group's rows.
void check_ranks(const CalibrateOptions& options, const RowWidths& widths);

// Throws Error for a text of fewer tokens than the largest rank, and for activations that are not
// finite. `progress` is called with the share of the work done. Every rank returns the same.
Calibration calibrate(Model& model, TextStream& text, const CalibrateOptions& options,
                      const std::function<void(double)>& progress);

}  // namespace sluice::impl
