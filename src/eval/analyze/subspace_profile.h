// The hidden axis of a model on a text, layer by layer: how many directions its activations take,
// and how far neighbouring layers share them. The token axis is eval/analyze/profile.h.

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "eval/calibrate.h"
#include "subspace/angles.h"

namespace sluice::impl {

struct SubspaceFigures {
  int64_t layer = 0;
  BasisInput input = BasisInput::kAttentionInput;
  int64_t d = 0;
  double energy = 0;  // that `rank` directions capture
  int64_t effective_rank_90 = 0, effective_rank_95 = 0, effective_rank_99 = 0;
  std::optional<Coherence> previous;  // with the same input of the layer before, at `rank`
};

struct SubspaceProfile {
  int64_t rank = 0;
  int64_t n_tokens = 0;
  std::vector<SubspaceFigures> groups;  // by layer, then input
};

struct SubspaceOptions {
  int64_t rank = 0, n_windows = 0;
  Communicator* communicator = &alone();  // as of calibrate
};
// From fresh decompositions over windows of the model's context; refuses what calibrate refuses.
SubspaceProfile profile_subspaces(Model& model, TextStream& text, const SubspaceOptions& asked,
                                  const std::function<void(double)>& progress);

// The `subspace` of results.json.
nlohmann::json describe_subspaces(const SubspaceProfile& profile);

}  // namespace sluice::impl
