#include "select/rules.h"

#include <array>

namespace sluice::impl {
namespace {

struct Name {
  SelectRule rule;
  std::string_view name;
};
constexpr std::array kNames = {
    Name{SelectRule::kIndependent, "independent"},
    Name{SelectRule::kGreedy, "greedy"},
    Name{SelectRule::kCascadePaper, "cascade-paper"},
    Name{SelectRule::kCascadeCausal, "cascade-causal"},
    Name{SelectRule::kCascadeCover, "cascade-cover"},
    Name{SelectRule::kFixed, "fixed"},
};

}  // namespace

std::string_view rule_name(SelectRule rule) {
  for (const Name& entry : kNames)
    if (entry.rule == rule) return entry.name;
  SLUICE_CHECK(!"unknown rule");
}

std::optional<SelectRule> rule_of(std::string_view name) {
  for (const Name& entry : kNames)
    if (entry.name == name) return entry.rule;
  return {};
}

SelectRule first_rule(SelectRule rule) {
  switch (rule) {
    case SelectRule::kIndependent:
    case SelectRule::kCascadePaper:
    case SelectRule::kCascadeCausal:
      return SelectRule::kIndependent;
    case SelectRule::kGreedy:
    case SelectRule::kCascadeCover:
    case SelectRule::kFixed:
      return SelectRule::kGreedy;
  }
  SLUICE_CHECK(!"unknown rule");
}

bool is_causal(SelectRule rule) { return rule != SelectRule::kCascadePaper; }

bool is_paper_setting(SelectRule rule) {
  return rule == SelectRule::kIndependent || rule == SelectRule::kCascadePaper;
}

}  // namespace sluice::impl
