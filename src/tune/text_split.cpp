#include "tune/text_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/error.h"

namespace sluice {
namespace {

constexpr int64_t kWindowsOfAUnit = 2;
// Windows are drawn from so many times as many, where the text has them.
constexpr int64_t kReadAhead = 4;

using Unit = std::vector<std::vector<int32_t>>;

class UnitReader {
 public:
  // most: windows of a document that may be needed.
  UnitReader(TextStream& text, int64_t context, int64_t most)
      : text_(text), length_(context + 1), most_tokens_(most * context + 1) {}

  // Windows that begin with a document; empty at the end of the text.
  Unit next() {
    tokens_.clear();
    while (static_cast<int64_t>(tokens_.size()) < length_)
      if (!text_.read_document(most_tokens_, tokens_)) break;
    Unit unit;
    const auto size = static_cast<int64_t>(tokens_.size());
    for (int64_t begin = 0; begin + length_ <= size && std::ssize(unit) < kWindowsOfAUnit;
         begin += length_ - 1)
      unit.emplace_back(tokens_.begin() + begin, tokens_.begin() + begin + length_);
    return unit;
  }
  // All windows of the document read last.
  std::vector<Unit> single_windows() const {
    std::vector<Unit> units;
    const auto size = static_cast<int64_t>(tokens_.size());
    for (int64_t begin = 0; begin + length_ <= size; begin += length_ - 1)
      units.push_back({{tokens_.begin() + begin, tokens_.begin() + begin + length_}});
    return units;
  }

 private:
  TextStream& text_;
  int64_t length_, most_tokens_;
  std::vector<int32_t> tokens_;
};

// Takes whole units from `from` on while they are needed.
size_t take(const std::vector<Unit>& units, size_t from, int64_t n_windows,
            std::vector<TuneWindow>& out) {
  size_t unit = from;
  for (; unit < units.size() && std::ssize(out) < n_windows; ++unit)
    for (const std::vector<int32_t>& tokens : units[unit])
      if (std::ssize(out) < n_windows)
        out.push_back({.tokens = tokens, .unit = static_cast<int64_t>(unit)});
  return unit;
}

}  // namespace

TextSplit split_text(TextStream& text, const SplitOptions& options) {
  SLUICE_CHECK(options.context > 0 && options.n_calibration > 0 && options.n_held_out > 0);
  const int64_t wanted = kReadAhead * (options.n_calibration + options.n_held_out);
  UnitReader reader(text, options.context, wanted);
  std::vector<Unit> units;
  TextSplit split;
  int64_t n_windows = 0;
  while (n_windows < wanted) {
    Unit unit = reader.next();
    if (unit.empty()) break;
    n_windows += std::ssize(unit);
    units.push_back(std::move(unit));
    if (units.size() == 1 && text.at_end()) {
      units = reader.single_windows();
      split.one_document = true;
      break;
    }
  }
  if (units.size() < 2)
    throw Error(fmt::format("the text has fewer than two windows of {} tokens: one to tune on and "
                            "one to judge by",
                            options.context),
                "a longer text, or a smaller --context");
  // A single document is cut where it stands: what comes later is judged.
  if (!split.one_document) {
    std::mt19937 random(options.seed);
    for (size_t i = units.size() - 1; i > 0; --i) std::swap(units[i], units[random() % (i + 1)]);
  }
  int64_t most = options.n_calibration;
  if (const auto all = static_cast<int64_t>(units.size());
      all < options.n_calibration + options.n_held_out) {
    // A third for tuning, the rest, which carries the promise, for judging.
    n_windows = 0;
    for (const Unit& unit : units) n_windows += std::ssize(unit);
    most = std::min(most, std::max<int64_t>(1, n_windows / 3));
  }
  const size_t n_calibration = take(units, 0, most, split.calibration);
  const size_t end = take(units, n_calibration, options.n_held_out, split.held_out);
  split.n_calibration_units = static_cast<int64_t>(n_calibration);
  split.n_held_out_units = static_cast<int64_t>(end - n_calibration);
  if (split.held_out.empty())
    throw Error("the text has too few documents to hold some of them back",
                "a longer text, or a smaller --context");
  return split;
}

}  // namespace sluice
