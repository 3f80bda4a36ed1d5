#include "eval/analyze/subspace_profile.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace sluice::impl {
namespace {

// Rounding may leave a whole spectrum a little below the share asked for.
int64_t whole_rank(const Basis& basis, double share) {
  return effective_rank(basis.spectrum, share).value_or(basis.d);
}

}  // namespace

SubspaceProfile profile_subspaces(Model& model, TextStream& text, const SubspaceOptions& asked,
                                  const std::function<void(double)>& progress) {
  CalibrateOptions options;
  options.inputs = linear_inputs(model.spec());
  options.ranks = {asked.rank};
  options.n_windows = asked.n_windows;
  options.communicator = asked.communicator;
  options.inherit = Inheritance::kNever;
  const Calibration calibration = calibrate(model, text, options, progress);
  SubspaceProfile profile;
  profile.rank = asked.rank;
  profile.n_tokens = calibration.bases.n_tokens;
  for (const Basis& basis : calibration.bases.list) {
    SLUICE_CHECK(static_cast<int64_t>(basis.spectrum.size()) == basis.d);
    SubspaceFigures figures;
    figures.layer = basis.layer;
    figures.input = basis.input;
    figures.d = basis.d;
    figures.energy = basis.energy();
    figures.effective_rank_90 = whole_rank(basis, 0.90);
    figures.effective_rank_95 = whole_rank(basis, 0.95);
    figures.effective_rank_99 = whole_rank(basis, 0.99);
    if (const Basis* before = calibration.bases.find(basis.layer - 1, basis.input))
      figures.previous = coherence(before->vectors, basis.vectors, basis.d);
    profile.groups.push_back(figures);
  }
  return profile;
}

nlohmann::json describe_subspaces(const SubspaceProfile& profile) {
  nlohmann::json groups = nlohmann::json::array();
  for (const SubspaceFigures& group : profile.groups) {
    nlohmann::json results = {{"layer", group.layer},
                              {"input", basis_input_name(group.input)},
                              {"d", group.d},
                              {"energy", group.energy},
                              {"effective_rank_90", group.effective_rank_90},
                              {"effective_rank_95", group.effective_rank_95},
                              {"effective_rank_99", group.effective_rank_99},
                              {"coherence_prev", nullptr},
                              {"smallest_cosine_prev", nullptr}};
    if (group.previous) {
      results["coherence_prev"] = group.previous->mean_squared;
      results["smallest_cosine_prev"] = group.previous->smallest;
    }
    groups.push_back(std::move(results));
  }
  return {{"rank", profile.rank}, {"n_tokens", profile.n_tokens}, {"groups", groups}};
}

}  // namespace sluice::impl
