// The selection rules by name, and what follows from a rule. docs/algorithm.md, section 2.

#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/select.h"

namespace sluice::impl {

inline constexpr std::array kSelectRules = {SelectRule::kIndependent,  SelectRule::kGreedy,
                                            SelectRule::kCascadePaper, SelectRule::kCascadeCausal,
                                            SelectRule::kCascadeCover, SelectRule::kFixed};
static_assert(kSelectRules.size() == size_t{static_cast<uint8_t>(SelectRule::kFixed)} + 1,
              "every rule; kFixed is the last");

std::string_view rule_name(SelectRule rule);
std::optional<SelectRule> rule_of(std::string_view name);
// Those that a user may ask for: all but kFixed.
std::vector<std::string> rule_names();

// The rule of the first selected layer, where there is nothing to inherit.
SelectRule first_rule(SelectRule rule);
// Whether a token's fate depends on tokens up to it alone.
bool is_causal(SelectRule rule);
// The paper's own settings go with these: residual space, no sinks, no outliers.
bool is_paper_setting(SelectRule rule);

}  // namespace sluice::impl
