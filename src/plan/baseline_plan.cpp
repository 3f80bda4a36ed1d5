#include "plan/baseline_plan.h"

#include <fmt/format.h>

#include "core/error.h"

namespace sluice::impl {

std::string_view baseline_name(BaselineKind kind) {
  switch (kind) {
    case BaselineKind::kWindow:
      return "baseline:window";
    case BaselineKind::kQuest:
      return "baseline:quest";
    case BaselineKind::kPooled:
      return "baseline:pooled";
    case BaselineKind::kOracle:
      return "baseline:oracle";
  }
  SLUICE_CHECK(!"unknown baseline");
}

std::optional<BaselineKind> baseline_of(std::string_view name) {
  using enum BaselineKind;
  for (const BaselineKind kind : {kWindow, kQuest, kPooled, kOracle})
    if (baseline_name(kind) == name) return kind;
  return {};
}

void check_baseline(const BaselinePlan& plan, bool causal) {
  if (!causal)
    throw Error(fmt::format("{} is for causal models, and this one is an encoder",
                            baseline_name(plan.kind)),
                "a causal model such as GPT-2 or Llama");
  if (!(plan.keep > 0 && plan.keep <= 1))
    throw Error(fmt::format("keep {} is outside 0 … 1", plan.keep),
                "1 reads everything, 0.1 a tenth");
  if (plan.context < 1)
    throw Error(
        fmt::format("{} needs the context that keep is a share of", baseline_name(plan.kind)),
        "1 token or more");
}

}  // namespace sluice::impl
