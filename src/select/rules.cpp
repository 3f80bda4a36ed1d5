#include "select/rules.h"

namespace sluice::impl {
namespace {

// What follows from a rule. A switch, so that the compiler names a rule that is missing.
struct Traits {
  std::string_view name;
  SelectRule first;  // of the first selected layer
  bool causal = true;
  bool paper_setting = false;
};
constexpr Traits traits(SelectRule rule) {
  switch (rule) {
    case SelectRule::kIndependent:
      return {"independent", SelectRule::kIndependent, /*causal=*/true, /*paper_setting=*/true};
    case SelectRule::kGreedy:
      return {"greedy", SelectRule::kGreedy};
    case SelectRule::kCascadePaper:
      return {"cascade-paper", SelectRule::kIndependent, /*causal=*/false, /*paper_setting=*/true};
    case SelectRule::kCascadeCausal:
      return {"cascade-causal", SelectRule::kIndependent};
    case SelectRule::kCascadeCover:
      return {"cascade-cover", SelectRule::kGreedy};
    case SelectRule::kFixed:
      return {"fixed", SelectRule::kGreedy};
  }
  SLUICE_CHECK(!"unknown rule");
}

}  // namespace

std::string_view rule_name(SelectRule rule) { return traits(rule).name; }

std::optional<SelectRule> rule_of(std::string_view name) {
  for (const SelectRule rule : kSelectRules)
    if (rule_name(rule) == name) return rule;
  return {};
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const SelectRule rule : kSelectRules)
    if (rule != SelectRule::kFixed) names.emplace_back(rule_name(rule));
  return names;
}

SelectRule first_rule(SelectRule rule) { return traits(rule).first; }
bool is_causal(SelectRule rule) { return traits(rule).causal; }
bool is_paper_setting(SelectRule rule) { return traits(rule).paper_setting; }

}  // namespace sluice::impl
