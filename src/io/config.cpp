#include "io/config.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/quote.h"
#include "io/json_text.h"
#include "io/mapped_file.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{4} << 20;  // with thousands of labels: tens of KiB
constexpr const char* kHint = "is this the config.json of a Hugging Face checkpoint?";

// The value when it is an integer that int64 can hold.
std::optional<int64_t> as_int(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(ConfigReader::kMaxInt)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

std::optional<double> as_finite(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::string int_range(int64_t min, int64_t max) {
  if (max == ConfigReader::kMaxInt) return fmt::format("an integer of {} or more", min);
  return fmt::format("an integer from {} to {}", min, max);
}

std::string float_range(double min, double max) {
  const bool no_min = min == -ConfigReader::kMaxFloat;
  const bool no_max = max == ConfigReader::kMaxFloat;
  if (no_min && no_max) return "a finite number";
  if (no_max) return fmt::format("a number of {} or more", min);
  if (no_min) return fmt::format("a number of {} or less", max);
  return fmt::format("a number from {} to {}", min, max);
}

}  // namespace

ConfigReader::ConfigReader(const std::filesystem::path& path)
    : ConfigReader(parse(read_text_file(path, kMaxConfigBytes), path_label(path))) {}

ConfigReader::ConfigReader(Json object, std::string label) : label_(std::move(label)) {
  if (!object.is_object())
    throw Error(label_ + ": is " + describe_json(object) + ", expected a JSON object", kHint);
  object_ = std::make_shared<const Json>(std::move(object));
}

ConfigReader ConfigReader::parse(std::string_view text, std::string label) {
  Json object = parse_json(text, label);
  return ConfigReader(std::move(object), std::move(label));
}

const Json* ConfigReader::find(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::string ConfigReader::full_key(std::string_view key) const {
  return quote(prefix_ + std::string(key));
}

const Json& ConfigReader::require(std::string_view key, std::string_view expected) const {
  if (const Json* value = find(key)) return *value;
  throw Error(fmt::format("{}: no {}, expected {}", label_, full_key(key), expected), kHint);
}

void ConfigReader::refuse(std::string_view key, std::string_view expected, std::string hint) const {
  const Json* value = find(key);
  throw Error(fmt::format("{}: {} is {}, expected {}", label_, full_key(key),
                          value ? describe_json(*value) : "absent", expected),
              hint.empty() ? kHint : std::move(hint));
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

int64_t ConfigReader::require_int(std::string_view key, int64_t min, int64_t max) const {
  const auto value = as_int(require(key, int_range(min, max)));
  if (!value || *value < min || *value > max) refuse(key, int_range(min, max));
  return *value;
}

int64_t ConfigReader::int_or(std::string_view key, int64_t fallback, int64_t min,
                             int64_t max) const {
  return has(key) ? require_int(key, min, max) : fallback;
}

double ConfigReader::require_float(std::string_view key, double min, double max) const {
  const auto value = as_finite(require(key, float_range(min, max)));
  if (!value || *value < min || *value > max) refuse(key, float_range(min, max));
  return *value;
}

double ConfigReader::float_or(std::string_view key, double fallback, double min, double max) const {
  return has(key) ? require_float(key, min, max) : fallback;
}

bool ConfigReader::bool_or(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::require_string(std::string_view key) const {
  const Json& value = require(key, "a string");
  if (!value.is_string()) refuse(key, "a string");
  return value.get<std::string>();
}

std::string ConfigReader::string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? require_string(key) : std::string(fallback);
}

std::vector<std::string> ConfigReader::strings(std::string_view key) const {
  std::vector<std::string> list;
  const Json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) refuse(key, "a list of strings");
  for (const Json& item : *value) {
    if (!item.is_string()) refuse(key, "a list of strings");
    list.push_back(item.get<std::string>());
  }
  return list;
}

std::vector<int64_t> ConfigReader::ints(std::string_view key, int64_t min, int64_t max) const {
  std::vector<int64_t> list;
  const Json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) return {require_int(key, min, max)};
  for (const Json& item : *value) {
    const auto number = as_int(item);
    if (!number || *number < min || *number > max)
      refuse(key, "a list, each " + int_range(min, max));
    list.push_back(*number);
  }
  return list;
}

std::vector<double> ConfigReader::floats(std::string_view key) const {
  std::vector<double> list;
  const Json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) refuse(key, "a list of numbers");
  for (const Json& item : *value) {
    const auto number = as_finite(item);
    if (!number) refuse(key, "a list of finite numbers");
    list.push_back(*number);
  }
  return list;
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(key, "an object");
  ConfigReader inner;
  inner.object_ = std::shared_ptr<const Json>(object_, value);
  inner.label_ = label_;
  inner.prefix_ = prefix_ + std::string(key) + ".";
  return inner;
}

}  // namespace sluice::impl
