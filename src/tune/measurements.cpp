#include "tune/measurements.h"

#include <cmath>
#include <fstream>

#include "core/error.h"
#include "core/quote.h"
#include "io/write_file.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

constexpr const char* kName = "sluice-measurements ";
constexpr const char* kFormat = "sluice-measurements 2";

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
  if (path_.empty()) return;
  std::ifstream file(path_);
  if (!file || file.peek() == std::ifstream::traits_type::eof()) return;
  const json found = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!is_ours(found))
    throw Error(path_label(path_.string()) + " is there and has no measurements of sluice tune",
                "give --measurements another name, or remove it");
  if (found["format"] != kFormat || !found.contains("key") || found["key"] != key_)
    throw Error(path_label(path_.string()) + " has measurements of another run" +
                    what_differs(found.value("key", json()), key_),
                "give --measurements another name, or remove it");
  if (!found.contains("kl") || !found["kl"].is_object()) return;
  for (const auto& [name, sums] : found["kl"].items())
    if (is_list_of_sums(sums)) kl_[name] = sums.get<std::vector<double>>();
  if (found.contains("times")) times_ = found["times"];
  resumed_ = true;
}

const std::vector<double>& Measurements::kl(const std::string& change) const {
  static const std::vector<double> kNone;
  const auto found = kl_.find(change);
  return found == kl_.end() ? kNone : found->second;
}

void Measurements::save() const {
  if (path_.empty()) return;
  const json all = {{"format", kFormat}, {"key", key_}, {"kl", kl_}, {"times", times_}};
  write_file(path_, text_of(all) + "\n");
}

}  // namespace sluice::impl
