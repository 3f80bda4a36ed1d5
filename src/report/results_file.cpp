// Reading and checking what other commands wrote.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/quote.h"
#include "eval/schema.h"
#include "io/json/value.h"
#include "io/json_file.h"
#include "report/needle_cells.h"
#include "report/report.h"
#include "report/shape.h"
#include "report/token_map.h"
#include "sluice/version.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

// A map of the most cells that a page can show has 2^25 numbers.
constexpr JsonLimits kLimits = {.bytes = size_t{256} << 20, .values = size_t{1} << 26};
constexpr const char* kOtherFileHint = "sluice report reads what sluice writes with --json";

void check_schema(const JsonValue& results) {
  if (!results.raw().is_object()) results.expected("results of sluice", kOtherFileHint);
  if (!results.raw().contains("schema"))
    results.refuse("has no `schema`, so these are not results of sluice", kOtherFileHint);
  const JsonValue schema = results.at("schema");
  // As double: the library compares signed and unsigned numbers by their bits.
  if (schema.raw().is_number_integer() && schema.raw().get<double>() > kResultsSchema)
    schema.refuse(fmt::format("{} was written by a newer sluice; this is {}, which reads schema {}",
                              schema.raw().dump(), SLUICE_VERSION, kResultsSchema),
                  "use that newer sluice, or run the command again with this one");
  schema.integer(1, kResultsSchema);
}

// Commands whose results a page can show, each with keys of which it must have one.
struct Shown {
  std::string_view command;
  std::vector<std::string_view> keys;
};
const std::vector<Shown>& shown_commands() {
  static const std::vector<Shown> all = {{"demo", {"parts"}},
                                         {"inspect", {"model"}},
                                         {"analyze", {"runs"}},
                                         {"eval", {"runs", "metrics"}},
                                         {"generate", {"runs", "generation"}},
                                         {"bench", {"cases"}},
                                         {"calibrate", {"groups"}},
                                         {"tune", {"contract"}},
                                         {"needle", {"cases"}}};
  return all;
}

void check_command(const JsonValue& part) {
  const JsonValue command = part.at("command");
  const auto& all = shown_commands();
  const auto shown = std::find_if(
      all.begin(), all.end(), [&](const Shown& each) { return each.command == command.string(); });
  if (shown == all.end())
    command.refuse(
        fmt::format("{} has nothing to show", quote(command.string())),
        "sluice report shows what analyze, eval, generate, bench, needle, calibrate, tune and demo "
        "write");
  if (std::none_of(shown->keys.begin(), shown->keys.end(),
                   [&](std::string_view key) { return part.raw().contains(key); }))
    part.refuse(fmt::format("has no `{}`, which {} writes", shown->keys.front(), shown->command));
  const bool first = part.at("schema").integer(1, kResultsSchema) == 1;
  const std::string name = std::string(shown->command) + " 1";
  check_shape(part, first && has_shape(name) ? name : shown->command);
}

// A chart's axis has sums and products of numbers, which must stay finite.
void check_numbers(const JsonValue& value) {
  constexpr double kLargest = 1e100;
  const Json& raw = value.raw();
  if (raw.is_number()) value.number(-kLargest, kLargest);
  if (raw.is_structured())
    for (const Json& inner : raw) check_numbers(JsonValue(inner, value.source()));
}

void check_part(const JsonValue& part) {
  check_schema(part);
  check_shape(part, "header");
  check_command(part);
  if (const auto map = part.find("map")) check_map(*map);
  if (part.at("command").string() == "needle") check_needles(part);
}

}  // namespace

void check_results(const Json& results, const std::string& label) {
  constexpr const char* kDemoHint = "did sluice demo write this file?";
  const JsonSource source{results, label,
                          "is this a file that sluice wrote with --json, unchanged?"};
  const JsonValue root(source);
  check_part(root);
  check_numbers(root);
  if (!results.contains("parts")) return;
  const JsonValue parts = root.at("parts");
  if (!parts.raw().is_array() || parts.raw().empty())
    parts.refuse("is not an array of results", kDemoHint);
  for (size_t i = 0; i < parts.array().size(); ++i) {
    const JsonValue part = parts.element(i);
    check_part(part);
    if (part.raw().contains("parts")) part.refuse("has parts of its own", kDemoHint);
  }
}

Json parse_results(std::string_view text, const std::string& label) {
  Json results = parse_json(text, label, kLimits);
  check_results(results, label);
  return results;
}

Json read_results(const std::filesystem::path& path) {
  Json results = read_json_file(path, kLimits);
  check_results(results, path_label(path));
  return results;
}

}  // namespace sluice::impl
