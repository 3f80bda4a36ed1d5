#include "io/tokenizer/json_reader.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/quote.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
std::string child_path(const std::string& where, std::string_view key) {
  return where.ends_with(": ") ? where + std::string(key) : fmt::format("{}.{}", where, key);
}

}  // namespace

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path, kMaxFileBytes), path_label(path));
}

JsonReader JsonReader::at(std::string_view key) const {
  if (!value_->is_object()) refuse("is not an object");
  const auto it = value_->find(key);
  if (it == value_->end()) refuse(fmt::format("has no '{}'", key));
  return {*it, child_path(where_, key)};
}

std::optional<JsonReader> JsonReader::find(std::string_view key) const {
  if (!value_->is_object()) refuse("is not an object");
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonReader(*it, child_path(where_, key));
}

JsonReader JsonReader::element(size_t i) const {
  return {array().at(i), fmt::format("{}[{}]", where_, i)};
}

const std::string& JsonReader::string() const {
  if (!value_->is_string()) refuse("is not a string");
  return value_->get_ref<const std::string&>();
}

int64_t JsonReader::integer() const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() || value_->get<uint64_t>() <= INT64_MAX);
  if (!fits) refuse("is not an integer");
  return value_->get<int64_t>();
}

const Json::array_t& JsonReader::array() const {
  if (!value_->is_array()) refuse("is not an array");
  return value_->get_ref<const Json::array_t&>();
}

const Json::object_t& JsonReader::object() const {
  if (!value_->is_object()) refuse("is not an object");
  return value_->get_ref<const Json::object_t&>();
}

std::string JsonReader::string_or(std::string_view key, std::string_view otherwise) const {
  const auto value = find(key);
  return value ? value->string() : std::string(otherwise);
}

bool JsonReader::bool_or(std::string_view key, bool otherwise) const {
  const auto value = find(key);
  if (!value) return otherwise;
  if (!value->raw().is_boolean()) value->refuse("is not true or false");
  return value->raw().get<bool>();
}

int64_t JsonReader::int_or(std::string_view key, int64_t otherwise) const {
  const auto value = find(key);
  return value ? value->integer() : otherwise;
}

char32_t JsonReader::char_or(std::string_view key, char32_t otherwise) const {
  const auto value = find(key);
  if (!value) return otherwise;
  const std::string& text = value->string();
  const Utf8Char c = text.empty() ? Utf8Char{} : decode_char(text, 0);
  if (!c.valid || c.n_bytes != text.size()) value->refuse("is not a single character");
  return c.code;
}

void JsonReader::refuse(const std::string& what) const {
  const std::string_view shown = where_;
  const bool top = shown.ends_with(": ");
  throw Error(fmt::format("{} {}", top ? shown.substr(0, shown.size() - 2) : shown, what),
              "was the file written by Hugging Face's tokenizers or transformers?");
}

int32_t checked_id(const Json& value, const std::string& where) {
  constexpr int64_t kMaxId = 1 << 24;  // the largest vocabularies have about 2^18
  const bool good = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= kMaxId) &&
                    value.get<int64_t>() >= 0 && value.get<int64_t>() <= kMaxId;
  if (!good) {
    throw Error(fmt::format("{} is not a token id from 0 to {}", where, kMaxId),
                "is the file damaged?");
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

}  // namespace sluice::impl::tok
