// What each rule of docs/algorithm.md, section 2, compares a token with.

#pragma once

#include <array>

#include "backend/select.h"

namespace sluice::impl::cpu::selection {

// Columns that count, per set.
enum Mask : size_t {
  kOwnerMask,      // representatives
  kPlainMask,      // what decides a token that is not inherited, where that is not the owners
  kInheritedMask,  // what decides an inherited token, where those are decided differently
  kMasks,
};

struct RuleTraits {
  bool magnitudes = false;  // compares absolute cosines
  bool covers = false;      // every token that is not in the set has an owner at the threshold
  bool may_crowd = false;   // representatives are not compared with each other: many may be alike
};
// A switch, so that the compiler names a rule that is missing.
inline RuleTraits traits(SelectRule rule) {
  switch (rule) {
    case SelectRule::kIndependent:
      return {.magnitudes = true};
    case SelectRule::kGreedy:
    case SelectRule::kCascadeCover:
      return {.covers = true};
    case SelectRule::kCascadePaper:
    case SelectRule::kCascadeCausal:
      return {.magnitudes = true, .may_crowd = true};
    case SelectRule::kFixed:
      return {.may_crowd = true};
  }
  return {};
}

// Which columns decide a token. A token of `cascade-cover` that is not inherited is an addition
// when neither a kept representative nor an earlier addition reaches the threshold: when no owner
// does, like in `greedy`.
inline Mask deciding_mask(SelectRule rule, bool inherited) {
  if (inherited) return kInheritedMask;
  return traits(rule).covers ? kOwnerMask : kPlainMask;
}

// In which masks a decided token counts.
inline std::array<bool, kMasks> masks_of(SelectRule rule, bool inherited, bool in_set) {
  switch (rule) {
    case SelectRule::kIndependent:
      return {in_set, true, false};
    case SelectRule::kCascadePaper:
    case SelectRule::kCascadeCausal:
      return {in_set, inherited && in_set, inherited};
    case SelectRule::kCascadeCover:
      return {in_set, false, inherited && in_set};
    case SelectRule::kGreedy:
    case SelectRule::kFixed:
      return {in_set, false, false};
  }
  return {};
}

}  // namespace sluice::impl::cpu::selection
