#include <fmt/format.h>

#include <algorithm>

#include "cli/analyze/analyze_tables.h"

namespace sluice::impl::cli {

std::string analyze_conclusion(const AnalyzeReport& report) {
  const Profile& profile = report.profiles.front();
  const size_t leading = report.leading();
  const auto share = [&](const LayerFigures& layer) {
    return layer.sets[leading].n_reps.mean() / static_cast<double>(profile.n_tokens);
  };
  const auto [least, most] = std::ranges::minmax_element(profile.layers, {}, share);
  return fmt::format(
      "With tau {} and {}, {:.0f}% to {:.0f}% of the tokens represent the text, by layer. What "
      "attention on them loses: sluice eval --attention keys --tau {}.",
      profile.tau, report.leading_kind().name, 100 * share(*least), 100 * share(*most),
      profile.tau);
}

}  // namespace sluice::impl::cli
