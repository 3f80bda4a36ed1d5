#include "report/spectrum.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sluice::impl {

void thin_spectra(nlohmann::json& groups) {
  constexpr size_t kSteps = 8;  // to each doubling, once there are as many directions
  for (nlohmann::json& group : groups) {
    const auto spectrum = group.find("spectrum");
    if (spectrum == group.end() || spectrum->is_null()) continue;
    nlohmann::json curve = nlohmann::json::array();
    double energy = 0;
    size_t next = 1;
    const size_t n = spectrum->size();
    for (size_t k = 1; k <= n; ++k) {
      energy += (*spectrum)[k - 1].get<double>();
      if (k < next && k < n) continue;
      curve.push_back({k, energy});
      next = k + std::max<size_t>(1, k / kSteps);
    }
    group.erase(spectrum);
    group["energy_curve"] = std::move(curve);
  }
}

}  // namespace sluice::impl
