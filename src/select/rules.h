// The selection rules by name, and what follows from a rule. docs/algorithm.md, section 2.

#pragma once

#include <optional>
#include <string_view>

#include "backend/select.h"

namespace sluice::impl {

// "independent", "greedy", "cascade-paper", "cascade-causal", "cascade-cover"; kFixed is "fixed".
std::string_view rule_name(SelectRule rule);
std::optional<SelectRule> rule_of(std::string_view name);

// The rule of the first selected layer, where there is nothing to inherit.
SelectRule first_rule(SelectRule rule);
// Whether a token's fate depends on tokens up to it alone.
bool is_causal(SelectRule rule);
// The paper's own settings go with these: residual space, no sinks, no outliers.
bool is_paper_setting(SelectRule rule);

}  // namespace sluice::impl
