// The spectra of `calibrate`, thinned for the page.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl {

// Replaces the `spectrum` of each of the groups (d numbers) by `energy_curve`: pairs of directions
// and the energy they hold together, at most about 64, closer where there are few directions. A
// model of 32 layers and 4096 numbers would take 10 MB else.
void thin_spectra(nlohmann::json& groups);

}  // namespace sluice::impl
