// `analyze --subspace`: what is asked for, and its table.

#pragma once

#include "cli/analyze/analyze_joint.h"
#include "cli/terminal/text_table.h"
#include "eval/analyze/subspace_profile.h"

namespace sluice::impl::cli {

struct SubspaceRequest {
  int64_t rank = 0;  // directions compared
  int64_t n_windows = 0;
};

// The largest of `ranks`, or d_model / 4; over windows of n_tokens. Refuses what can be refused
// before the work.
SubspaceRequest subspace_request(const std::vector<int64_t>& ranks, int64_t n_windows,
                                 int64_t n_tokens, const ModelSpec& spec, const TextSource& text);

// Says on stderr when the text has fewer tokens than an input has directions.
SubspaceProfile run_subspace(const SubspaceRequest& request, const TextSource& text, Model& model,
                             bool quiet);

// Effective ranks and the coherence of neighbouring layers, with that of a profile's token sets.
TextTable subspace_table(const SubspaceProfile& subspaces, const Profile& tokens);

}  // namespace sluice::impl::cli
