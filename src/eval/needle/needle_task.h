// What a prompt of `needle` hides in a text and asks for: tasks in the form of RULER (arXiv
// 2404.06654), made by a seed.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl {

enum class NeedleTask : uint8_t {
  kNeedle,     // one number
  kKeys,       // one of eight numbers, each of a place of its own
  kVariables,  // all names of a chain of assignments
  kWords,      // the three most frequent of some words
};

std::string_view task_name(NeedleTask task);  // "needle", "keys", "variables", "words"
std::optional<NeedleTask> task_of(std::string_view name);

struct HiddenFact {
  double depth;  // in the text, 0 to 1
  std::string text;
};

struct NeedleQuestion {
  std::vector<HiddenFact> facts;  // by depth, ascending
  std::string question;           // up to the answer
  std::string answer;             // without the space before it
};

// depth: of the fact that is asked for, of the first of a chain; words are spread over the whole
// text.
NeedleQuestion make_question(NeedleTask task, double depth, uint64_t seed);

}  // namespace sluice::impl
