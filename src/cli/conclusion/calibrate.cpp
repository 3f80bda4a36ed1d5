#include <fmt/format.h>

#include <algorithm>

#include "cli/conclusion/conclusion.h"

namespace sluice::impl::cli {

std::string calibrate_conclusion(const Calibration& calibration, const std::string& output) {
  const auto energy = [](const GroupFigures& group) { return group.energies.back(); };
  const auto [least, most] = std::ranges::minmax_element(calibration.groups, {}, energy);
  return fmt::format(
      "Bases keep {:.0f}% to {:.0f}% of the energy, least in layer {}, {}. What gated layers lose "
      "and let through: sluice eval --linear gsi --bases {}.",
      100 * energy(*least), 100 * energy(*most), least->layer, basis_input_name(least->input),
      output);
}

}  // namespace sluice::impl::cli
