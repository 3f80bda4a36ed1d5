#include "tune/text_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/error.h"

namespace sluice::impl {
namespace {

// That are looked at; of each unit one is taken, and more only where there are too few units.
constexpr int64_t kWindowsOfAUnit = 8;
// Units are drawn from so many times as many, where the text has them.
constexpr int64_t kReadAhead = 2;

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

// One window of each unit [begin, end), then another of each, until there are as many as wanted.
void take(const std::vector<Unit>& units, size_t begin, size_t end, int64_t n_windows,
          std::vector<TuneWindow>& out) {
  for (size_t round = 0; round < static_cast<size_t>(kWindowsOfAUnit); ++round)
    for (size_t unit = begin; unit < end && std::ssize(out) < n_windows; ++unit)
      if (round < units[unit].size())
        out.push_back({.tokens = units[unit][round], .unit = static_cast<int64_t>(unit)});
}

template <typename T>
void shuffle(std::vector<T>& list, std::mt19937& random) {
  for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random() % i]);
}

}  // namespace

TextSplit split_text(TextStream& text, const SplitOptions& options) {
  SLUICE_CHECK(options.context > 0 && options.n_calibration > 0 && options.n_held_out > 0);
  const int64_t wanted = kReadAhead * (options.n_calibration + options.n_held_out);
  UnitReader reader(text, options.context, wanted);
  std::vector<Unit> units;
  std::vector<Unit> first_document;  // window by window, should there be no other
  TextSplit split;
  while (std::ssize(units) < wanted) {
    Unit unit = reader.next();
    if (unit.empty()) break;
    units.push_back(std::move(unit));
    if (units.size() == 1) first_document = reader.single_windows();
  }
  if (units.size() < 3 && first_document.size() > 2) {
    units = std::move(first_document);
    split.one_document = true;
  }
  if (units.size() < 3)
    throw Error(
        fmt::format("the text has fewer than three windows of {} tokens: one to tune on and "
                    "two to judge by",
                    options.context),
        "a longer text, or a smaller --context");
  // A single document is cut where it stands: what comes later is judged.
  if (!split.one_document) {
    std::mt19937 random(options.seed);
    shuffle(units, random);
    for (Unit& unit : units) shuffle(unit, random);
  }
  const auto n_units = std::ssize(units);
  const int64_t share =
      n_units * options.n_calibration / (options.n_calibration + options.n_held_out);
  split.n_calibration_units =
      std::clamp<int64_t>(share, 1, std::min(n_units - 2, options.n_calibration));
  split.n_held_out_units = std::min(n_units - split.n_calibration_units, options.n_held_out);
  const auto middle = static_cast<size_t>(split.n_calibration_units);
  take(units, 0, middle, options.n_calibration, split.calibration);
  take(units, middle, middle + static_cast<size_t>(split.n_held_out_units), options.n_held_out,
       split.held_out);
  if (split.n_held_out_units < 2)
    throw Error("the text has too few documents to judge by: two at least must be held out",
                "a longer text, a smaller --context, or a larger --held-out");
  return split;
}

TextSplit split_masked_text(const Model& model, TextStream& text, const SplitOptions& options) {
  const MaskTemplate around = mask_template(model, text.tokenizer(), options.context);
  SplitOptions inner = options;
  // One token less: a window of split_text has one more than its context.
  inner.context = options.context - std::ssize(around.tokens) - 1;
  if (inner.context < 1)
    throw Error(fmt::format("a context of {} has no room for text", options.context),
                "a larger --context");
  TextSplit split = split_text(text, inner);
  const auto n_masks = std::max<int64_t>(
      1, static_cast<int64_t>(MaskOptions{}.share * static_cast<double>(inner.context)));
  std::mt19937 random(options.seed);
  for (std::vector<TuneWindow>* windows : {&split.calibration, &split.held_out})
    for (TuneWindow& window : *windows) {
      window.tokens = around.enclosed(window.tokens);
      std::vector<int32_t> plain;
      for (size_t i = 0; i < window.tokens.size(); ++i)
        if (!text.tokenizer().is_special(window.tokens[i])) plain.push_back(static_cast<int>(i));
      if (std::ssize(plain) <= n_masks)
        throw Error("a window of the text has hardly a token that is not special",
                    "another text, or a --separator that parts it into fewer documents");
      shuffle(plain, random);
      window.places.assign(plain.begin(), plain.begin() + n_masks);
      std::sort(window.places.begin(), window.places.end());
      for (const int32_t place : window.places) {
        window.truth.push_back(window.tokens[static_cast<size_t>(place)]);
        window.tokens[static_cast<size_t>(place)] = around.mask_id;
      }
    }
  return split;
}

}  // namespace sluice::impl
