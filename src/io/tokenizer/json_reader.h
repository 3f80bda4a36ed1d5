// A value inside a JSON file that remembers where it stands, so that every wrong type or missing
// key becomes one Error naming file and key.

#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::impl::tok {

using Json = nlohmann::json;

// Refuses files that are too large, nested too deeply or not JSON.
Json read_json_file(const std::filesystem::path& path);

class JsonReader {
 public:
  JsonReader(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const Json& raw() const { return *value_; }
  const std::string& where() const { return where_; }  // "…/tokenizer.json: model.vocab"

  JsonReader at(std::string_view key) const;
  std::optional<JsonReader> find(std::string_view key) const;  // nothing when absent or null
  JsonReader element(size_t i) const;

  const std::string& string() const;
  const std::string& type() const { return at("type").string(); }
  int64_t integer() const;
  const Json::array_t& array() const;
  const Json::object_t& object() const;

  std::string string_or(std::string_view key, std::string_view otherwise) const;
  bool bool_or(std::string_view key, bool otherwise) const;
  int64_t int_or(std::string_view key, int64_t otherwise) const;
  // A string of exactly one character.
  char32_t char_or(std::string_view key, char32_t otherwise) const;

  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const Json* value_;
  std::string where_;
};

// A token id out of a file: 0 to 2^24. Nothing else is accepted, so ids are safe to count with.
int32_t checked_id(const Json& value, const std::string& where);

}  // namespace sluice::impl::tok
