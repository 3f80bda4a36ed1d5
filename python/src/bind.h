// The parts of the extension module sluice._core. What people use is the Python code of
// python/sluice/, which names, checks and documents every argument; functions here take theirs as
// they come from it.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/sluice.h"

namespace sluice::python {

namespace nb = nanobind;

void bind_plan(nb::module_& core);
void bind_model(nb::module_& core);
void bind_generate(nb::module_& core);
void bind_evaluate(nb::module_& core);
void bind_attention(nb::module_& core);

// Token ids in the caller's memory.
using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
inline std::span<const int32_t> span_of(const Tokens& tokens) {
  return {tokens.data(), tokens.size()};
}

// Named options from Python. finish() throws TypeError for a name that nobody asked for.
class Options {
 public:
  explicit Options(const nb::dict& given) : rest_(nb::cast<nb::dict>(given.attr("copy")())) {}

  // Leaves the value as it is where the option was not given.
  template <typename T>
  void take(const char* name, T& value) {
    if (!rest_.contains(name)) return;
    try {
      value = nb::cast<T>(rest_[name]);
    } catch (const nb::cast_error&) {
      throw nb::type_error((std::string(name) + " has a value of a wrong type").c_str());
    }
    nb::del(rest_[name]);
  }
  // The same for a word out of a list.
  template <typename T>
  void take_word(const char* name, std::span<const std::pair<const char*, T>> words, T& value);
  void finish() const;

 private:
  nb::dict rest_;
};

template <typename T>
void Options::take_word(const char* name, std::span<const std::pair<const char*, T>> words,
                        T& value) {
  std::string given;
  take(name, given);
  if (given.empty()) return;
  std::string known;
  for (const auto& [word, meaning] : words) {
    if (given == word) {
      value = meaning;
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  throw Error("there is no " + std::string(name) + " '" + given + "'", "one of " + known);
}

// The word of a value that has one.
template <typename T, size_t N>
const char* word_of(const std::pair<const char*, T> (&words)[N], T value) {
  for (const auto& [word, meaning] : words)
    if (meaning == value) return word;
  return "";
}

inline constexpr std::pair<const char*, AttentionMode> kModes[] = {
    {"dense", AttentionMode::kDense},
    {"refine", AttentionMode::kRefine},
    {"keys", AttentionMode::kKeys},
    {"copy", AttentionMode::kCopy}};
inline constexpr std::pair<const char*, Objective> kObjectives[] = {
    {"prefill", Objective::kPrefill},
    {"decode", Objective::kDecode},
    {"memory", Objective::kMemory},
    {"reads", Objective::kReads},
    {"decode-reads", Objective::kDecodeReads}};
inline constexpr std::pair<const char*, Device> kDevices[] = {
    {"cpu", Device::kCpu}, {"cuda", Device::kCuda}, {"reference", Device::kReference}};
inline constexpr std::pair<const char*, DType> kDTypes[] = {{"f32", DType::kF32},
                                                            {"bf16", DType::kBF16}};

// The options of attention that a plan or an Attention is made of.
AttentionOptions attention_options(Options& options);

// Runs the handlers of signals that came, so that Ctrl-C ends a long call with KeyboardInterrupt.
// Takes the lock of the interpreter; for the callbacks of calls that gave it up.
void check_signals();

// {"value", "standard_error"}.
nb::dict dict_of(const Measured& measured);
nb::object text_or_none(const std::string& text);

}  // namespace sluice::python
