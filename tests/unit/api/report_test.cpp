// Results as JSON, and the page of them.

#include "sluice/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unit/api/api_models.h"

namespace sluice::test {
namespace {

using nlohmann::json;

class ApiReport : public testing::Test {
 protected:
  Model model = Model::load(demo_model(), {.context = 256});
};

TEST_F(ApiReport, ResultsOfEvaluateHaveItsFigures) {
  const std::vector<Plan> plans = {Plan(), Plan::uniform({.mode = AttentionMode::kRefine})};
  const Evaluation found = evaluate(model, demo_text(), plans, {.max_windows = 1, .results = true});
  const json results = json::parse(found.results);
  EXPECT_EQ(results["command"], "eval");
  ASSERT_EQ(results["runs"].size(), 2u);
  EXPECT_EQ(results["runs"][0]["settings"]["attention"], "dense");
  EXPECT_EQ(results["runs"][1]["settings"]["attention"], "refine");
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(results["runs"][i]["metrics"]["kl_mean"], found.plans[i].kl.value);
  const Evaluation dense = evaluate(model, demo_text(), {}, {.max_windows = 1, .results = true});
  EXPECT_EQ(json::parse(dense.results)["metrics"]["ppl"], dense.perplexity.value);
}

TEST_F(ApiReport, EvaluateHasNoResultsUnlessAsked) {
  EXPECT_EQ(evaluate(model, demo_text(), {}, {.max_windows = 1}).results, "");
}

TEST_F(ApiReport, AnalyzeFollowsEveryLayer) {
  std::vector<double> shares;
  const json results = json::parse(
      analyze(model, demo_text(),
              {.taus = {0.3, 0.5}, .context = 128, .max_windows = 1, .progress = [&](double share) {
                 shares.push_back(share);
               }}));
  EXPECT_EQ(results["command"], "analyze");
  ASSERT_EQ(results["runs"].size(), 2u);
  // Three cascades, the independent and the greedy set, and two controls, at each of 12 layers.
  EXPECT_EQ(results["runs"][0]["rows"].size(), 12u * 7);
  ASSERT_FALSE(shares.empty());
  EXPECT_EQ(shares.back(), 1);
}

TEST_F(ApiReport, AnalyzeRefusesWhatItCannotDo) {
  expect_error([&] { analyze(model, demo_text(), {.taus = {}}); }, {"no tau"});
  expect_error([&] { analyze(model, demo_text(), {.taus = {1}}); }, {"out of range"});
  expect_error([&] { analyze(model, demo_text(), {.context = 300}); }, {"do not fit"});
  expect_error([&] { analyze(model, demo_text(), {.max_windows = 0}); }, {"less than one"});
  expect_error([&] { analyze(model, "nowhere.txt"); }, {"nowhere.txt"});
}

TEST_F(ApiReport, ThePageHoldsAllResults) {
  const std::vector<std::string> results = {
      analyze(model, demo_text(), {.context = 64, .max_windows = 1}),
      evaluate(model, demo_text(), {}, {.max_windows = 1, .results = true}).results};
  const std::string page = report_page(results);
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>") || page.starts_with("<!doctype html>"));
  EXPECT_NE(page.find("sluice::analyze()"), std::string::npos);
  EXPECT_NE(page.find("sluice::evaluate()"), std::string::npos);
}

TEST_F(ApiReport, WhatIsNoResultsIsRefused) {
  expect_error([] { report_page({}); }, {"no results"});
  const std::vector<std::string> others = {"{}"};
  expect_error([&] { report_page(others); }, {"results 1"});
  const std::vector<std::string> broken = {"{"};
  expect_error([&] { report_page(broken); }, {"results 1"});
}

}  // namespace
}  // namespace sluice::test
