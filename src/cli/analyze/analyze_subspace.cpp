#include "cli/analyze/analyze_subspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/analyze/analyze_tables.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/say.h"
#include "core/error.h"
#include "ranks/world.h"

namespace sluice::impl::cli {
namespace {

// Fewer rows than directions hold all of their energy in as many directions as they are.
void warn_of_few_tokens(const SubspaceProfile& subspaces) {
  const auto widest = std::max_element(
      subspaces.groups.begin(), subspaces.groups.end(),
      [](const SubspaceFigures& a, const SubspaceFigures& b) { return a.d < b.d; });
  if (widest != subspaces.groups.end() && subspaces.n_tokens < widest->d)
    say("sluice: {} tokens are fewer than the {} numbers of {}, and effective ranks are "
        "at most that many; more --windows, or a longer text, tell more\n",
        subspaces.n_tokens, widest->d, basis_input_name(widest->input));
}

}  // namespace

SubspaceRequest subspace_request(const std::vector<int64_t>& ranks, int64_t n_windows,
                                 int64_t n_tokens, const ModelSpec& spec, const TextSource& text) {
  const int64_t rank = ranks.empty() ? std::max<int64_t>(spec.d_model / 4, 1)
                                     : *std::max_element(ranks.begin(), ranks.end());
  CalibrateOptions asked;
  asked.inputs = linear_inputs(spec);
  asked.ranks = {rank};
  check_ranks(asked, spec.row_widths());
  TextStream stream = text.open();
  std::vector<int32_t> tokens;
  const int64_t n = stream.read(std::min(rank, std::min(n_windows, rank) * n_tokens), tokens);
  if (n < rank)
    throw Error(fmt::format("{} tokens are too few for the {} directions of --subspace", n, rank),
                "a smaller --rank, more --windows, or a longer text");
  return {.rank = rank, .n_windows = n_windows};
}

SubspaceProfile run_subspace(const SubspaceRequest& request, const TextSource& source, Model& model,
                             bool quiet) {
  SubspaceProfile profile;
  {
    ProgressBar bar("analyze subspaces", quiet);
    TextStream text = source.open();
    profile = profile_subspaces(model, text, {request.rank, request.n_windows, &world()},
                                [&](double done) { bar.update(done, ""); });
  }
  warn_of_few_tokens(profile);
  return profile;
}

TextTable subspace_table(const SubspaceProfile& subspaces, const Profile& tokens) {
  TextTable table(
      fmt::format("Both axes. Directions that hold 90, 95 and 99% of the energy of what linear "
                  "layers read ({} tokens); energy: of the first {}; cos², smallest: of the "
                  "principal angles with the layer before at that rank, chance: of random "
                  "subspaces; Jaccard: of independent token sets, {}",
                  subspaces.n_tokens, subspaces.rank, profile_label(tokens)),
      {"layer", "input", "d", "90%", "95%", "99%", "energy", "cos²", "chance", "smallest",
       "Jaccard"},
      2);
  for (const SubspaceFigures& group : subspaces.groups) {
    const auto& previous = group.previous;
    const SetFigures& set = tokens.layers[static_cast<size_t>(group.layer)].sets[kIndependentSet];
    table.add({cell(group.layer), words(std::string(basis_input_name(group.input))), cell(group.d),
               cell(group.effective_rank_90), cell(group.effective_rank_95),
               cell(group.effective_rank_99), cell(group.energy, kPercent),
               previous ? cell(previous->mean_squared, kShare) : no_value(),
               cell(static_cast<double>(subspaces.rank) / static_cast<double>(group.d), kShare),
               previous ? cell(previous->smallest, kShare) : no_value(),
               cell(set.jaccard_prev, kShare)});
  }
  return table;
}

}  // namespace sluice::impl::cli
