#include "io/config.h"

#include "core/quote.h"
#include "io/json/value.h"
#include "io/json_file.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

// With thousands of labels: tens of KiB.
constexpr JsonLimits kLimits = {
    .bytes = size_t{4} << 20, .values = size_t{1} << 20, .repeated = RepeatedKeys::kLastCounts};

}  // namespace

struct ConfigReader::File {
  File(Json content, std::string label)
      : root(std::move(content)),
        source{root, std::move(label), "is this the config.json of a Hugging Face checkpoint?"} {}

  const Json root;
  const JsonSource source;
};

ConfigReader::ConfigReader(const std::filesystem::path& path)
    : ConfigReader(read_json_file(path, kLimits), path_label(path)) {}

ConfigReader::ConfigReader(Json object, std::string label)
    : file_(std::make_shared<const File>(std::move(object), std::move(label))),
      object_(&file_->root) {
  value().object();  // refuses whatever is not one
}

ConfigReader::ConfigReader(std::shared_ptr<const File> file, const Json& object)
    : file_(std::move(file)), object_(&object) {}

ConfigReader ConfigReader::parse(std::string_view text, std::string label) {
  Json object = parse_json(text, label, kLimits);
  return ConfigReader(std::move(object), std::move(label));
}

const std::string& ConfigReader::label() const { return file_->source.label; }

JsonValue ConfigReader::value() const { return {*object_, file_->source}; }

JsonValue ConfigReader::require(std::string_view key, std::string_view expected) const {
  const auto found = value().find(key);
  if (!found) refuse(key, expected);
  return *found;
}

void ConfigReader::refuse(std::string_view key, std::string_view expected,
                          const std::string& hint) const {
  value().expected_at(key, expected, hint);
}

bool ConfigReader::has(std::string_view key) const { return value().find(key).has_value(); }
bool ConfigReader::states(std::string_view key) const {
  return object_->find(key) != object_->end();
}

int64_t ConfigReader::require_int(std::string_view key, int64_t min, int64_t max) const {
  return require(key, integer_range(min, max)).integer(min, max);
}

int64_t ConfigReader::int_or(std::string_view key, int64_t fallback, int64_t min,
                             int64_t max) const {
  return value().integer_or(key, fallback, min, max);
}

double ConfigReader::require_float(std::string_view key, double min, double max) const {
  return require(key, number_range(min, max)).number(min, max);
}

double ConfigReader::float_or(std::string_view key, double fallback, double min, double max) const {
  return value().number_or(key, fallback, min, max);
}

bool ConfigReader::bool_or(std::string_view key, bool fallback) const {
  return value().boolean_or(key, fallback);
}

std::string ConfigReader::require_string(std::string_view key) const {
  return require(key, "a string").string();
}

std::string ConfigReader::string_or(std::string_view key, std::string_view fallback) const {
  return value().string_or(key, fallback);
}

std::vector<std::string> ConfigReader::strings(std::string_view key) const {
  std::vector<std::string> list;
  if (const auto found = value().find(key))
    for (size_t i = 0; i < found->array().size(); ++i) list.push_back(found->element(i).string());
  return list;
}

std::vector<int64_t> ConfigReader::ints(std::string_view key, int64_t min, int64_t max) const {
  std::vector<int64_t> list;
  const auto found = value().find(key);
  if (!found) return list;
  if (!found->raw().is_array()) return {found->integer(min, max)};
  for (size_t i = 0; i < found->array().size(); ++i)
    list.push_back(found->element(i).integer(min, max));
  return list;
}

std::vector<double> ConfigReader::floats(std::string_view key) const {
  std::vector<double> list;
  if (const auto found = value().find(key))
    for (size_t i = 0; i < found->array().size(); ++i) list.push_back(found->element(i).number());
  return list;
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) const {
  const auto found = value().find(key);
  if (!found) return std::nullopt;
  found->object();  // refuses whatever is not one
  return ConfigReader(file_, found->raw());
}

}  // namespace sluice::impl
