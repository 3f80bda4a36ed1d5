// The two axes of a model on one page: directions of activations beside representative tokens.

#include <fmt/format.h>

#include "cli/analyze_tables.h"

namespace sluice::cli {

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
  constexpr Digits kShare{.decimals = 3}, kPercent{.decimals = 1, .factor = 100, .unit = "%"};
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

}  // namespace sluice::cli
