// The sets that a plan's layers choose, and what its heads would read with them, on windows of a
// text. As all that `analyze` finds, on the activations of the dense model: a layer is judged by
// itself, not by what those above it did to its input.

#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "eval/analyze/profile_attention.h"
#include "eval/text/text_stream.h"
#include "plan/attention_plan.h"
#include "ranks/communicator.h"

namespace sluice::impl {

// One layer; all figures are over windows.
struct PlanLayerProfile {
  std::vector<double> taus;       // of the heads that cluster, ascending; none: no head does
  std::vector<SetFigures> sets;   // for each of them
  RunningMean keys_read;          // share of the keys that dense attention reads, all heads
  RunningMean clusters_fraction;  // docs/results.md

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(taus, sets, keys_read, clusters_fraction);
  }
};

struct PlanProfile {
  int64_t n_tokens = 0;  // of a window
  int64_t n_windows = 0;
  std::vector<PlanLayerProfile> layers;      // (n_layers)
  RunningMean keys_read, clusters_fraction;  // of all layers

  void add_window(const PlanProfile& window);  // of one window alone

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(n_tokens, n_windows, layers, keys_read, clusters_fraction);
  }
};

struct PlanProfileOptions {
  int64_t n_tokens = 0;
  int64_t n_windows = 0;                  // at most
  Communicator* communicator = &alone();  // that windows are divided over
};

// Windows are those of analyze(). Throws Error for a layer of mode `paper`, whose owners no figure
// here is about, for an encoder, and for a text that has not even one window.
// `progress` is called with the share of the work done.
PlanProfile profile_plan(Model& model, const ProjectionNorms& norms, TextStream& text,
                         const AttentionPlan& plan, const PlanProfileOptions& options,
                         const std::function<void(double)>& progress);
// The same refusals, before the work.
void check_profiled_plan(const AttentionPlan& plan, const ModelSpec& spec);

// An entry of `runs`: docs/results.md, "What analyze writes".
nlohmann::json plan_profile_json(const PlanProfile& profile, const AttentionPlan& plan);

}  // namespace sluice::impl
