// A table in Markdown: printed line by line, and kept in the results for documents to be made from.

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice::impl::bench {

class Table {
 public:
  // The text is results["tables"][name]. Throws Error where there is one of that name.
  Table(std::string name, nlohmann::json& results);

  void say(const std::string& line);
  void columns(const std::vector<std::string>& names);
  void row(const std::vector<std::string>& cells);

 private:
  void add(const std::string& line);
  void add_cells(const std::vector<std::string>& cells);

  std::string name_;
  nlohmann::json& results_;
  size_t n_columns_ = 0;
};

}  // namespace sluice::impl::bench
