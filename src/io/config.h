// Checked access to the values of a JSON object, config.json above all.

#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl {

class JsonValue;

// A key that is absent and a key that is null mean the same. A value of another type or out of
// range throws Error, as JsonValue (io/json/value.h) does.
class ConfigReader {
 public:
  static constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
  static constexpr double kMaxFloat = std::numeric_limits<double>::max();

  // Throws Error when the file cannot be read or does not hold one JSON object.
  explicit ConfigReader(const std::filesystem::path& path);
  // `label` stands for the path in errors.
  ConfigReader(nlohmann::json object, std::string label);
  static ConfigReader parse(std::string_view text, std::string label);

  bool has(std::string_view key) const;     // with a value other than null
  bool states(std::string_view key) const;  // with any
  int64_t require_int(std::string_view key, int64_t min, int64_t max) const;
  int64_t int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  double require_float(std::string_view key, double min = -kMaxFloat, double max = kMaxFloat) const;
  double float_or(std::string_view key, double fallback, double min = -kMaxFloat,
                  double max = kMaxFloat) const;
  bool bool_or(std::string_view key, bool fallback) const;
  std::string require_string(std::string_view key) const;
  std::string string_or(std::string_view key, std::string_view fallback) const;
  // Lists: empty when absent. A lone integer is a list of one (eos_token_id may be either).
  std::vector<std::string> strings(std::string_view key) const;
  std::vector<int64_t> ints(std::string_view key, int64_t min, int64_t max) const;
  std::vector<double> floats(std::string_view key) const;
  // Errors of the inner reader name the key as outer.inner.
  std::optional<ConfigReader> object(std::string_view key) const;

  // For checks beyond type and range: "PATH: key: expected ..., found VALUE".
  [[noreturn]] void refuse(std::string_view key, std::string_view expected,
                           const std::string& hint = {}) const;
  const std::string& label() const;

 private:
  struct File;
  ConfigReader(std::shared_ptr<const File> file, const nlohmann::json& object);
  JsonValue value() const;
  JsonValue require(std::string_view key, std::string_view expected) const;

  std::shared_ptr<const File> file_;
  const nlohmann::json* object_;  // in the file
};

}  // namespace sluice::impl
