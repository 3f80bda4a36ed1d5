#include "report/page_parts.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

// Results and their parts of schema 2 have these; a value of null counts as none.
bool has(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

Json taken(Json& object, const char* key) {
  Json value = std::move(object[key]);
  object.erase(key);
  return value;
}

// By layer, ascending.
using Layers = std::map<int64_t, Json>;
// The layer of a row, which loses its number.
Json& layer_of(Layers& layers, Json& row) {
  const auto number = taken(row, "layer").get<int64_t>();
  return layers.try_emplace(number, Json{{"layer", number}}).first->second;
}

Json list_of(Layers& layers) {
  Json list = Json::array();
  for (auto& [number, layer] : layers) list.push_back(std::move(layer));
  return list;
}

// Sets of a layer under their names; `leading` is the one that summaries are about.
void put_set(Json& layer, Json set, const std::string& leading) {
  const auto rule = set.at("rule").get<std::string>();
  if (rule == leading) layer["cascade"] = set;
  if (rule == "independent" || rule == "greedy")
    layer[rule] = std::move(set);
  else if (rule == "random" || rule == "unvalidated")
    layer["controls"][rule] = std::move(set);
  else if (rule != leading)
    layer["cascades"].push_back(std::move(set));
}

Json profile_of(Json run) {
  const bool named = has(run, "summary") && has(run["summary"], "rule");
  const std::string leading = named ? run["summary"]["rule"].get<std::string>() : std::string();
  Layers layers;
  for (Json& row : taken(run, "rows")) {
    Json& layer = layer_of(layers, row);
    put_set(layer, std::move(row), leading);
  }
  if (has(run, "heads"))
    for (Json& head : taken(run, "heads")) {
      Json& layer = layer_of(layers, head);
      layer["heads"].push_back(std::move(head));
    }
  run["layers"] = list_of(layers);
  return run;
}

Json plan_run_of(Json run) {
  Layers layers;
  if (has(run, "layers"))
    for (Json& layer : taken(run, "layers")) layer_of(layers, layer).update(layer);
  for (Json& row : taken(run, "rows")) {
    Json& layer = layer_of(layers, row);
    layer["sets"].push_back(std::move(row));
  }
  run["layers"] = list_of(layers);
  return run;
}

Json analyze_part(Json results) {
  Json runs = Json::array(), plan_runs = Json::array();
  for (Json& run : taken(results, "runs"))
    if (has(run, "tau"))
      runs.push_back(profile_of(std::move(run)));
    else
      plan_runs.push_back(plan_run_of(std::move(run)));
  results["runs"] = std::move(runs);
  results["plan_runs"] = std::move(plan_runs);
  return results;
}

std::vector<Json> generate_parts(Json results) {
  std::vector<Json> parts;
  Json runs = taken(results, "runs");
  for (Json& run : runs) {
    if (has(run, "error")) continue;
    Json part = results;
    for (const char* key : {"metrics", "cache", "linear", "audit"})
      if (has(run, key)) part[key] = taken(run, key);
    part["generation"] = std::move(run);
    parts.push_back(std::move(part));
  }
  // Nothing but errors: the page still tells of the command.
  if (parts.empty()) parts.push_back(std::move(results));
  return parts;
}

}  // namespace

std::vector<Json> page_parts(Json results) {
  const bool rows = results.at("schema").get<int64_t>() > 1;
  const auto command = results.at("command").get<std::string>();
  if (rows && command == "generate") return generate_parts(std::move(results));
  return {rows && command == "analyze" ? analyze_part(std::move(results)) : std::move(results)};
}

}  // namespace sluice::impl
