// Reading and checking what other commands wrote.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/quote.h"
#include "eval/schema.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "report/needle_cells.h"
#include "report/report.h"
#include "report/shape.h"
#include "report/token_map.h"
#include "sluice/version.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{256} << 20;

void check_schema(const Json& results, const std::string& label) {
  constexpr const char* kHint = "sluice report reads what sluice writes with --json";
  if (!results.is_object())
    throw Error(fmt::format("{}: is {}, not results of sluice", label, describe_json(results)),
                kHint);
  if (!results.contains("schema"))
    throw Error(label + ": has no `schema`, so these are not results of sluice", kHint);
  const Json& schema = results["schema"];
  // As double: the library compares signed and unsigned numbers by their bits.
  if (!schema.is_number_integer() || schema.get<double>() < 1)
    throw Error(
        fmt::format("{}: schema is {}, expected {}", label, describe_json(schema), kResultsSchema),
        kHint);
  if (schema.get<double>() > kResultsSchema)
    throw Error(fmt::format("{}: schema {} was written by a newer sluice; this is {}, which reads "
                            "schema {}",
                            label, schema.dump(), SLUICE_VERSION, kResultsSchema),
                "use that newer sluice, or run the command again with this one");
}

// Commands whose results a page can show, each with keys of which it must have one.
struct Shown {
  std::string_view command;
  std::vector<std::string_view> keys;
};
const std::vector<Shown>& shown_commands() {
  static const std::vector<Shown> all = {
      {"demo", {"parts"}},           {"inspect", {"model"}},       {"analyze", {"runs"}},
      {"eval", {"runs", "metrics"}}, {"generate", {"generation"}}, {"bench", {"cases"}},
      {"calibrate", {"groups"}},     {"tune", {"contract"}},       {"needle", {"cases"}}};
  return all;
}

void check_command(const Json& part, const std::string& label) {
  const auto command = part["command"].get<std::string>();
  const auto& all = shown_commands();
  const auto shown = std::find_if(all.begin(), all.end(),
                                  [&](const Shown& each) { return each.command == command; });
  if (shown == all.end())
    throw Error(
        fmt::format("{}: command is {}, of which there is nothing to show", label, quote(command)),
        "sluice report shows what analyze, eval, generate, bench, needle, calibrate, tune and demo "
        "write");
  if (std::none_of(shown->keys.begin(), shown->keys.end(),
                   [&](std::string_view key) { return part.contains(key); }))
    throw Error(
        fmt::format("{}: has no `{}`, which {} writes", label, shown->keys.front(), command),
        "is this a file that sluice wrote with --json, unchanged?");
  check_shape(part, command, label);
}

void check_part(const Json& part, const std::string& label) {
  check_schema(part, label);
  check_shape(part, "header", label);
  check_command(part, label);
  if (const auto map = part.find("map"); map != part.end() && !map->is_null())
    check_map(*map, label);
  if (part["command"] == "needle") check_needles(part, label);
}

}  // namespace

void check_results(const Json& results, const std::string& label) {
  check_part(results, label);
  const auto parts = results.find("parts");
  if (parts == results.end()) return;
  if (!parts->is_array() || parts->empty())
    throw Error(label + ": parts is not an array of results", "did sluice demo write this file?");
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string where = fmt::format("{}: parts[{}]", label, i);
    check_part((*parts)[i], where);
    if ((*parts)[i].contains("parts"))
      throw Error(where + ": has parts of its own", "did sluice demo write this file?");
  }
}

Json read_results(const std::filesystem::path& path) {
  const std::string label = path_label(path);
  Json results = parse_json(read_text_file(path, kMaxFileBytes), label);
  check_results(results, label);
  return results;
}

}  // namespace sluice::impl
