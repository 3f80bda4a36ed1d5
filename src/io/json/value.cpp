#include "io/json/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/quote.h"
#include "io/json/parse.h"
#include "io/json/path.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

struct Step {
  const std::string* key;  // nullptr: an element of an array
  size_t index;
};

// Fills `steps` with the path from `from` to `wanted`, the last step first.
bool find_steps(const Json& from, const Json* wanted, size_t max_steps, std::vector<Step>& steps) {
  if (&from == wanted) return true;
  if (max_steps == 0) return false;
  const auto goes_on = [&](const Json& inner, const Step& step) {
    if (!find_steps(inner, wanted, max_steps - 1, steps)) return false;
    steps.push_back(step);
    return true;
  };
  if (from.is_object()) {
    for (const auto& [key, inner] : from.get_ref<const Json::object_t&>())
      if (goes_on(inner, {&key, 0})) return true;
  } else if (from.is_array()) {
    for (size_t i = 0; i < from.size(); ++i)
      if (goes_on(from[i], {nullptr, i})) return true;
  }
  return false;
}

JsonPath path_of(const JsonSource& source, const Json* value) {
  std::vector<Step> steps;
  // Few steps first: what stands near the root is found without a walk through all of a file.
  bool found = false;
  for (size_t depth = 0; !found && depth <= kMaxJsonDepth; ++depth)
    found = find_steps(source.root, value, depth, steps);
  SLUICE_CHECK(found);
  JsonPath path;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->key != nullptr)
      path.add_key(*step->key);
    else
      path.add_index(step->index);
  }
  return path;
}

// The value when it is an integer that int64 can hold.
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{JsonValue::kMaxInt}) return {};
  return value.is_number_integer() ? std::optional(value.get<int64_t>()) : std::nullopt;
}

}  // namespace

std::string describe_json(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (value.is_string()) {
    std::string text = quote(value.get_ref<const std::string&>());
    text.front() = '"';
    text.back() = '"';
    return text;
  }
  // Trees that were not parsed may have these; JSON has no word for them.
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return fmt::format("{}", value.get<double>());
  return value.dump();  // null, a bool or a number
}

std::string integer_range(int64_t min, int64_t max) {
  if (max == JsonValue::kMaxInt) return fmt::format("an integer of {} or more", min);
  return fmt::format("an integer from {} to {}", min, max);
}

std::string number_range(double min, double max) {
  const bool no_min = min == -JsonValue::kMaxNumber;
  const bool no_max = max == JsonValue::kMaxNumber;
  if (no_min && no_max) return "a finite number";
  if (no_max) return fmt::format("a number of {} or more", min);
  if (no_min) return fmt::format("a number of {} or less", max);
  return fmt::format("a number from {} to {}", min, max);
}

std::string JsonValue::where() const { return path_of(*source_, value_).in(source_->label); }

void JsonValue::refuse(std::string_view what, const std::string& hint) const {
  throw Error(fmt::format("{}: {}", where(), what), hint.empty() ? source_->hint : hint);
}

void JsonValue::expected(std::string_view what, const std::string& hint) const {
  refuse(fmt::format("expected {}, found {}", what, describe_json(*value_)), hint);
}

void JsonValue::expected_at(std::string_view key, std::string_view what,
                            const std::string& hint) const {
  if (const auto found = object().find(key); found != object().end())
    JsonValue(found->second, *source_).expected(what, hint);
  JsonPath path = path_of(*source_, value_);
  path.add_key(key);
  throw Error(fmt::format("{}: expected {}, found nothing", path.in(source_->label), what),
              hint.empty() ? source_->hint : hint);
}

const Json::object_t& JsonValue::object() const {
  if (!value_->is_object()) expected("an object");
  return value_->get_ref<const Json::object_t&>();
}

const Json::array_t& JsonValue::array() const {
  if (!value_->is_array()) expected("an array");
  return value_->get_ref<const Json::array_t&>();
}

JsonValue JsonValue::at(std::string_view key) const {
  const auto found = object().find(key);
  if (found == object().end()) refuse(fmt::format("has no {}", quote(key)));
  return {found->second, *source_};
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  const auto found = object().find(key);
  if (found == object().end() || found->second.is_null()) return {};
  return JsonValue(found->second, *source_);
}

void JsonValue::expect_keys(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, inner] : object())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      JsonValue(inner, *source_)
          .refuse("is not a known key", fmt::format("known here: {}", fmt::join(keys, ", ")));
}

void JsonValue::expect_size(int64_t size, std::string_view whose) const {
  if (std::ssize(array()) != size)
    refuse(fmt::format("has {} elements, {} is {}", array().size(), whose, size));
}

int64_t JsonValue::integer(int64_t min, int64_t max) const {
  const auto number = as_integer(*value_);
  if (!number || *number < min || *number > max) expected(integer_range(min, max));
  return *number;
}

double JsonValue::number(double min, double max) const {
  const double number = value_->is_number() ? value_->get<double>() : NAN;
  if (!(number >= min && number <= max)) expected(number_range(min, max));
  return number;
}

bool JsonValue::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

const std::string& JsonValue::string() const {
  if (!value_->is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

const std::string& JsonValue::string(size_t max_bytes) const {
  const std::string& text = string();
  if (text.empty() || text.size() > max_bytes)
    refuse(
        fmt::format("expected a string of 1 to {} bytes, found {} bytes", max_bytes, text.size()));
  return text;
}

int64_t JsonValue::integer_or(std::string_view key, int64_t otherwise, int64_t min,
                              int64_t max) const {
  const auto value = find(key);
  return value ? value->integer(min, max) : otherwise;
}

double JsonValue::number_or(std::string_view key, double otherwise, double min, double max) const {
  const auto value = find(key);
  return value ? value->number(min, max) : otherwise;
}

bool JsonValue::boolean_or(std::string_view key, bool otherwise) const {
  const auto value = find(key);
  return value ? value->boolean() : otherwise;
}

std::string JsonValue::string_or(std::string_view key, std::string_view otherwise) const {
  const auto value = find(key);
  return value ? value->string() : std::string(otherwise);
}

}  // namespace sluice::impl
