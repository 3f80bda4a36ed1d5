#include "sluice/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "report/report.h"
#include "sluice/error.h"

namespace sluice {

std::string report_page(std::span<const std::string> results) {
  if (results.empty()) throw Error("there are no results to show", "give one or more");
  std::vector<nlohmann::json> parsed;
  std::vector<std::string> names;
  for (const std::string& each : results) {
    names.push_back(fmt::format("results {}", names.size() + 1));
    parsed.push_back(impl::parse_results(each, names.back()));
  }
  return impl::report_page(std::move(parsed), "sluice::report_page()", names);
}

}  // namespace sluice
