// Results of both schemas become the same parts of a page.

#include "report/page_parts.h"

#include <gtest/gtest.h>

#include "unit/report/sample_results.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

TEST(PageParts, RowsOfAnalyzeBecomeLayers) {
  const std::vector<Json> parts = page_parts(test::sample_analyze());
  ASSERT_EQ(parts.size(), 1u);
  ASSERT_EQ(parts[0].at("runs").size(), 1u);  // the other is of a plan
  const Json& layers = parts[0].at("runs")[0].at("layers");
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].at("layer"), 0);
  EXPECT_EQ(layers[0].at("independent").at("n_reps"), 2.0);
  EXPECT_EQ(layers[0].at("cascade").at("rule"), "cascade-cover");
  EXPECT_EQ(layers[0].at("heads")[0].at("n_reps_cascade"), 2.0);
  EXPECT_FALSE(layers[0].contains("cascades"));
  EXPECT_EQ(layers[1].at("cascades").size(), 1u);
  EXPECT_EQ(layers[1].at("cascades")[0].at("rule"), "cascade-paper");
  EXPECT_TRUE(layers[1].at("controls").contains("random"));
  EXPECT_FALSE(parts[0].at("runs")[0].contains("rows"));
}

TEST(PageParts, RunsOfPlansHaveTheSetsOfEachLayer) {
  const Json part = page_parts(test::sample_analyze()).at(0);
  ASSERT_EQ(part.at("plan_runs").size(), 1u);
  const Json& layer = part.at("plan_runs")[0].at("layers").at(0);
  EXPECT_EQ(layer.at("keys_read_fraction"), 0.5);
  EXPECT_EQ(layer.at("sets")[0].at("rule"), "reused");
}

TEST(PageParts, ARuleThatLeadsIsShownUnderItsNameToo) {
  Json results = test::sample_analyze();
  results["runs"][0]["summary"]["rule"] = "independent";
  const Json part = page_parts(results).at(0);
  const Json& layer = part.at("runs")[0].at("layers").at(0);
  EXPECT_EQ(layer.at("cascade"), layer.at("independent"));
  EXPECT_EQ(layer.at("cascades")[0].at("rule"), "cascade-cover");
}

TEST(PageParts, EveryGeneratedTextIsAPartAndErrorsAreNone) {
  const std::vector<Json> parts = page_parts(test::sample_generate());
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].at("generation").at("text"), " gate");
  EXPECT_EQ(parts[0].at("audit").at("every"), 8);
  EXPECT_FALSE(parts[0].contains("runs"));
  Json failed = test::sample_generate();
  failed["runs"].erase(0);
  ASSERT_EQ(page_parts(failed).size(), 1u);
  EXPECT_FALSE(page_parts(failed)[0].contains("generation"));
}

TEST(PageParts, OfSchema1StayAsTheyAre) {
  for (const Json& results : {test::sample_analyze_1(), test::sample_generate_1()})
    EXPECT_EQ(page_parts(results), std::vector<Json>{results});
}

}  // namespace
}  // namespace sluice::impl
