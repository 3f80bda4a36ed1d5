#include "eval/needle/needle_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>

#include "core/error.h"

namespace sluice::impl {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"needle", "keys", "variables", "words"};

// What numbers are keys of. The first is that of the one needle.
constexpr std::array<std::string_view, 8> kPlaces = {"archive",  "harbor",  "garden", "library",
                                                     "mountain", "station", "bridge", "tower"};
constexpr std::array<std::string_view, 8> kWordsToCount = {"amber",  "copper", "falcon", "lantern",
                                                           "meadow", "pepper", "saddle", "velvet"};
// How often each of six words stands there: three stand out.
constexpr std::array kCounts = {14, 10, 7, 2, 2, 1};
constexpr size_t kWordLines = 9;
constexpr size_t kChain = 4;  // names of a chain

// The same on every machine: distributions of the standard library are not.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t n) { return random_() % n; }
  std::string number() { return std::to_string(10000 + below(90000)); }  // five digits
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937_64 random_;
};

// Of the wordings tried with a model of 135 million parameters, the one that it answers most often
// at 4096 and 8192 tokens. The number stands there twice, side by side.
std::string fact_of(std::string_view place, const std::string& number) {
  return fmt::format(
      " The pass key of the {0} is {1}. Remember it. {1} is the pass key of the {0}.", place,
      number);
}
NeedleQuestion ask_for(std::string_view place, const std::string& number) {
  return {.facts = {},
          .question =
              fmt::format("\n\nWhat is the pass key of the {0}? The pass key of the {0} is", place),
          .answer = number};
}

NeedleQuestion make_needle_question(double depth, Draw draw) {
  const std::string number = draw.number();
  NeedleQuestion made = ask_for(kPlaces[0], number);
  made.facts = {{depth, fact_of(kPlaces[0], number)}};
  return made;
}

// The other keys stand at even depths.
NeedleQuestion make_keys_question(double depth, Draw draw) {
  std::vector<std::string_view> places(kPlaces.begin(), kPlaces.end());
  draw.shuffle(places);
  std::vector<std::string> numbers;
  while (numbers.size() < places.size()) {
    const std::string number = draw.number();
    if (std::find(numbers.begin(), numbers.end(), number) == numbers.end())
      numbers.push_back(number);
  }
  NeedleQuestion made = ask_for(places[0], numbers[0]);
  made.facts.push_back({depth, fact_of(places[0], numbers[0])});
  for (size_t i = 1; i < places.size(); ++i)
    made.facts.push_back({(static_cast<double>(i) - 0.5) / static_cast<double>(places.size() - 1),
                          fact_of(places[i], numbers[i])});
  return made;
}

NeedleQuestion make_variables_question(double depth, Draw draw) {
  const std::string number = draw.number();
  NeedleQuestion made;
  std::vector<std::string> names;
  while (names.size() < kChain) {
    std::string name;
    for (int i = 0; i < 3; ++i) name += static_cast<char>('A' + draw.below(26));
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const double at = depth + (1 - depth) * static_cast<double>(names.size()) / double{kChain};
    made.facts.push_back({at, names.empty()
                                  ? fmt::format(" VAR {} = {}.", name, number)
                                  : fmt::format(" VAR {} = VAR {}.", name, names.back())});
    made.answer += (names.empty() ? "" : " ") + name;
    names.push_back(name);
  }
  made.question = fmt::format(
      "\n\nWhich variables have the value {0}? In the order of the text, the variables that have "
      "the "
      "value {0} are",
      number);
  return made;
}

NeedleQuestion make_words_question(Draw draw) {
  std::vector<std::string_view> words(kWordsToCount.begin(), kWordsToCount.end());
  draw.shuffle(words);
  std::vector<std::string_view> coded;
  for (size_t i = 0; i < kCounts.size(); ++i)
    coded.insert(coded.end(), static_cast<size_t>(kCounts[i]), words[i]);
  draw.shuffle(coded);
  NeedleQuestion made;
  for (size_t line = 0; line < kWordLines; ++line) {
    std::string text = " Coded words:";
    for (size_t i = line; i < coded.size(); i += kWordLines) text += fmt::format(" {}", coded[i]);
    made.facts.push_back(
        {(static_cast<double>(line) + 0.5) / static_cast<double>(kWordLines), text + "."});
  }
  made.question =
      "\n\nWhat are the three most frequent coded words? The three most frequent coded words, the "
      "most frequent first, are";
  made.answer = fmt::format("{} {} {}", words[0], words[1], words[2]);
  return made;
}

}  // namespace

std::string_view task_name(NeedleTask task) { return kNames[static_cast<size_t>(task)]; }

std::optional<NeedleTask> task_of(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<NeedleTask>(i);
  return {};
}

NeedleQuestion make_question(NeedleTask task, double depth, uint64_t seed) {
  SLUICE_CHECK(depth >= 0 && depth <= 1);
  const Draw draw(seed);
  NeedleQuestion made = task == NeedleTask::kNeedle      ? make_needle_question(depth, draw)
                        : task == NeedleTask::kKeys      ? make_keys_question(depth, draw)
                        : task == NeedleTask::kVariables ? make_variables_question(depth, draw)
                                                         : make_words_question(draw);
  std::stable_sort(made.facts.begin(), made.facts.end(),
                   [](const HiddenFact& a, const HiddenFact& b) { return a.depth < b.depth; });
  return made;
}

}  // namespace sluice::impl
