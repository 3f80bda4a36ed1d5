#include "report/needle_cells.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/report.h"
#include "unit/report/sample_results.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

TEST(CountNeedles, CellsHaveWhatDenseAndEveryChoiceFind) {
  Json results = test::sample_needle();
  count_needles(results);
  EXPECT_FALSE(results.contains("cases"));
  EXPECT_EQ(results["cells"], Json::parse(R"([
    {"task": "needle", "n_tokens": 200, "depth": 0.5, "n": 2, "dense": 1,
     "runs": [{"found": 1, "lost": 0}, {"found": 1, "lost": 1}]},
    {"task": "needle", "n_tokens": 400, "depth": 0.5, "n": 1, "dense": 1,
     "runs": [{"found": 0, "lost": 1}, {"found": 0, "lost": 1}]}])"));
}

TEST(CountNeedles, TasksLengthsAndDepthsAreCellsOfTheirOwn) {
  Json results = test::sample_needle();
  results["cases"][1]["depth"] = 0.25;
  results["cases"].push_back(results["cases"][0]);
  results["cases"][3]["task"] = "words";
  results["cases"].push_back(results["cases"][0]);
  results["cases"][4].erase("task");  // a file of before there were tasks
  count_needles(results);
  std::vector<int> counts;
  for (const Json& cell : results["cells"]) counts.push_back(cell["n"]);
  EXPECT_EQ(counts, (std::vector<int>{2, 1, 1, 1}));
  EXPECT_EQ(results["cells"][3]["task"], "words");
}

TEST(CountNeedles, PagesHaveCellsAlone) {
  const std::string page = report_page({test::sample_needle()}, "");
  EXPECT_NE(page.find("\"cells\":[{"), std::string::npos);
  EXPECT_EQ(page.find("12345"), std::string::npos);
}

}  // namespace
}  // namespace sluice::impl
