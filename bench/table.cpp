#include "table.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace sluice::impl::bench {

Table::Table(std::string name, nlohmann::json& results)
    : name_(std::move(name)), results_(results) {
  if (!results["tables"].emplace(name_, "").second) throw Error("two cases are named " + name_);
  fmt::print("\n");
}

void Table::say(const std::string& line) { add(line + "\n"); }

void Table::columns(const std::vector<std::string>& names) {
  n_columns_ = names.size();
  add("\n");
  add_cells(names);
  add_cells(std::vector<std::string>(n_columns_, "---"));
}

void Table::row(const std::vector<std::string>& cells) {
  SLUICE_CHECK(cells.size() == n_columns_);
  add_cells(cells);
}

void Table::add_cells(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += fmt::format(" {} |", cell);
  add(line + "\n");
}

void Table::add(const std::string& line) {
  results_["tables"][name_].get_ref<std::string&>() += line;
  fmt::print("{}", line);
  std::fflush(stdout);
}

}  // namespace sluice::impl::bench
