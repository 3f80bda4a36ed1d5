#include "report/needle_cells.h"

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/json/value.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

// Files of before the tasks ask for a number.
std::string task_of_case(const Json& each) {
  const auto task = each.find("task");
  return task == each.end() || task->is_null() ? "needle" : task->get<std::string>();
}

struct Run {
  int64_t found = 0, lost = 0;
};
struct Cell {
  std::string task;
  int64_t n_tokens = 0;
  double depth = 0;
  int64_t n = 0, dense = 0;
  std::vector<Run> runs;
};

void count_case(const Json& each, Cell& cell) {
  const bool dense = each.at("dense").at("found").get<bool>();
  const Json& runs = each.at("runs");
  ++cell.n;
  cell.dense += dense;
  cell.runs.resize(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool found = runs[i].at("found").get<bool>();
    cell.runs[i].found += found;
    cell.runs[i].lost += dense && !found;
  }
}

Json describe_cell(const Cell& cell) {
  Json runs = Json::array();
  for (const Run& run : cell.runs) runs.push_back({{"found", run.found}, {"lost", run.lost}});
  return {{"task", cell.task}, {"n_tokens", cell.n_tokens}, {"depth", cell.depth},
          {"n", cell.n},       {"dense", cell.dense},       {"runs", std::move(runs)}};
}

}  // namespace

void check_needles(const JsonValue& results) {
  const auto n_runs = std::ssize(results.at("summary").at("runs").array());
  const JsonValue cases = results.at("cases");
  for (size_t i = 0; i < cases.array().size(); ++i)
    cases.element(i).at("runs").expect_size(n_runs, "the length of summary.runs");
}

void count_needles(Json& results) {
  std::map<std::tuple<std::string, int64_t, double>, size_t> index;
  std::vector<Cell> cells;
  for (const Json& each : results.at("cases")) {
    Cell cell{.task = task_of_case(each),
              .n_tokens = each.at("n_tokens").get<int64_t>(),
              .depth = each.at("depth").get<double>(),
              .runs = {}};
    const auto [at, is_new] =
        index.try_emplace({cell.task, cell.n_tokens, cell.depth}, cells.size());
    if (is_new) cells.push_back(std::move(cell));
    count_case(each, cells[at->second]);
  }
  results.erase("cases");
  results["cells"] = Json::array();
  for (const Cell& cell : cells) results["cells"].push_back(describe_cell(cell));
}

}  // namespace sluice::impl
