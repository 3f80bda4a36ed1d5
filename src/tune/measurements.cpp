#include "tune/measurements.h"

#include <cmath>

#include "core/error.h"
#include "core/quote.h"
#include "io/json/parse.h"
#include "io/json/value.h"
#include "io/mapped_file.h"
#include "io/write_file.h"
#include "ranks/divide.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

constexpr const char* kName = "sluice-measurements ";
constexpr const char* kFormat = "sluice-measurements 2";
constexpr const char* kHint = "give --measurements another name, or remove it";
// Hundreds of changes over hundreds of windows.
constexpr JsonLimits kLimits = {.bytes = size_t{256} << 20, .values = size_t{1} << 24};

bool is_list_of_sums(const json& list) {
  if (!list.is_array()) return false;
  for (const json& sum : list)
    if (!sum.is_number() || !std::isfinite(sum.get<double>()) || sum.get<double>() < 0)
      return false;
  return true;
}

// Of any version.
bool is_ours(const json& found) {
  return found.is_object() && found.contains("format") && found["format"].is_string() &&
         found["format"].get<std::string>().starts_with(kName);
}

// A separator may hold bytes that are not UTF-8.
std::string text_of(const json& all) {
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Whatever cannot be read may be a file of something else, which must not be written over.
json parse_measurements(const std::string& text, const std::string& label) {
  try {
    return parse_json(text, label, kLimits);
  } catch (const Error& error) {
    throw Error(error.what(), kHint);
  }
}

// In brackets, by name; nothing where it is all.
std::string what_differs(const json& found, const json& wanted) {
  std::string names;
  for (const auto& [name, value] : wanted.items())
    if (found.is_object() && found.contains(name) && found[name] != value)
      names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "" : " (" + names + ")";
}

}  // namespace

Measurements::Measurements(std::filesystem::path path, const json& key)
    : path_(std::move(path)), key_(json::parse(text_of(key))) {  // as a file would have it
  std::error_code error;
  if (path_.empty() || !std::filesystem::exists(path_, error)) return;
  const std::string label = path_label(path_), text = read_text_file(path_, kLimits.bytes);
  if (text.empty()) return;
  json found = parse_measurements(text, label);
  const JsonSource source{found, label, kHint};
  const JsonValue root(source);
  if (!is_ours(found)) root.refuse("has no measurements of sluice tune");
  if (found["format"] != kFormat || !found.contains("key") || found["key"] != key_)
    root.refuse("has measurements of another run" + what_differs(found.value("key", json()), key_));
  if (!found.contains("kl") || !found["kl"].is_object()) return;
  for (const auto& [name, sums] : root.at("kl").object())
    if (is_list_of_sums(sums)) kl_[name] = sums.get<std::vector<double>>();
  if (found.contains("times")) times_ = std::move(found["times"]);
  resumed_ = true;
}

const std::vector<double>& Measurements::kl(const std::string& change) const {
  static const std::vector<double> none;
  const auto found = kl_.find(change);
  return found == kl_.end() ? none : found->second;
}

void Measurements::share(Communicator& ranks) {
  std::string text = text_of({{"kl", kl_}, {"resumed", resumed_}});
  share_from_first(ranks, text);
  const json found = json::parse(text);
  kl_ = found["kl"].get<std::map<std::string, std::vector<double>>>();
  resumed_ = found["resumed"].get<bool>();
}

void Measurements::save() const {
  if (path_.empty()) return;
  const json all = {{"format", kFormat}, {"key", key_}, {"kl", kl_}, {"times", times_}};
  write_file(path_, text_of(all) + "\n");
}

}  // namespace sluice::impl
