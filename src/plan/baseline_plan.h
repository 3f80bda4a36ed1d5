// Baselines as data: what a layer does that is compared with refined attention. No plan file names
// one: sluice eval and needle alone run them. docs/baselines.md.

#pragma once

#include <optional>
#include <string_view>

#include "backend/baseline.h"

namespace sluice::impl {

struct BaselinePlan {
  BaselineKind kind = BaselineKind::kWindow;
  double keep = 1;      // in (0, 1]
  int64_t context = 0;  // that the share is of, above 0 in a layer of mode `baseline`

  bool operator==(const BaselinePlan&) const = default;
};

// "baseline:window", "baseline:quest", "baseline:pooled", "baseline:oracle".
std::string_view baseline_name(BaselineKind kind);
std::optional<BaselineKind> baseline_of(std::string_view name);
inline constexpr const char* kBaselineNames = "baseline:window, :quest, :pooled or :oracle";

// Throws Error for a plan that has no meaning, and for an encoder.
void check_baseline(const BaselinePlan& plan, bool causal);

}  // namespace sluice::impl
