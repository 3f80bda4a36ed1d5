// What `analyze` writes in addition to its profiles: the paper's figures and the map.

#include "eval/analyze/analyze_results.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "eval/analyze/paper_tables.h"
#include "unit/model/byte_tokenizer.h"

namespace sluice::impl::test {
namespace {

using nlohmann::json;

class Findings : public testing::Test {
 protected:
  json describe(const ModelSpec& spec) const {
    return describe_findings(
        spec, {.options = options_, .contexts = {512}, .result = result_, .tokenizer = tokenizer_});
  }

  AnalyzeOptions options_{
      .taus = {0.3}, .spaces = {RowSpace::kResidual}, .rules = {SelectRule::kCascadeCover}};
  AnalyzeResult result_;
  const ByteTokenizer tokenizer_{{}};
};

ModelSpec spec_of(const PaperModel& paper) {
  ModelSpec spec;
  spec.family = paper.family;
  spec.n_layers = paper.n_layers;
  spec.d_model = paper.d_model;
  return spec;
}

TEST_F(Findings, HoldThePapersFiguresForItsModelsOnly) {
  for (const PaperModel& paper : paper_models()) {
    ModelSpec spec = spec_of(paper);
    const json found = describe(spec).at("paper");
    EXPECT_EQ(found.at("name"), paper.name);
    EXPECT_EQ(found.at("tau"), 0.3);
    EXPECT_EQ(found.at("n_tokens"), 512);
    EXPECT_EQ(found.at("space"), "residual");
    EXPECT_EQ(found.at("counts").size(), paper.counts.size());
    EXPECT_EQ(found.at("coherence").size(), paper.coherence.size());
    EXPECT_EQ(found.at("layers").size(), paper.layers.size());
    for (const json& row : found.at("coherence")) {
      EXPECT_GE(row.at("layer"), 1);  // the first layer has none before it
      EXPECT_LT(row.at("layer"), paper.n_layers);
    }
    spec.d_model += 64;
    EXPECT_FALSE(describe(spec).contains("paper")) << paper.name;
  }
}

TEST_F(Findings, HaveThePapersLayersInItsNumbers) {
  const json paper = describe(spec_of(paper_models()[1])).at("paper");
  EXPECT_EQ(paper.at("counts")[0], json({{"layer", 0}, {"n_reps", 69}}));
  EXPECT_EQ(paper.at("coherence")[0], json({{"layer", 1}, {"jaccard", 0.863}}));
  EXPECT_EQ(paper.at("layers")[0], json({{"layer", 0},
                                         {"n_reps_independent", 69},
                                         {"n_reps_cascade", 69},
                                         {"jaccard_prev", nullptr},
                                         {"turnover", nullptr}}));
  EXPECT_EQ(paper.at("layers")[1], json({{"layer", 1},
                                         {"n_reps_independent", 80},
                                         {"n_reps_cascade", 200},
                                         {"jaccard_prev", 0.863},
                                         {"turnover", 1.90}}));
}

TEST_F(Findings, WriteTheMapInLettersPositionsAndFourDecimals) {
  EXPECT_FALSE(describe({}).contains("map"));
  using enum TokenStatus;
  result_.map = TokenMap{.tau = 0.3,
                         .space = RowSpace::kNormed,
                         .rule = SelectRule::kCascadePaper,
                         .tokens = {'a', 0xe2, 'b', 'c'},
                         .layers = {{{kExempt, kRepresentative, kRedundant, kUncovered},
                                     {0, 1, 1, 1},
                                     {1, 1, 0.91236f, -0.25f}}}};
  const json expected = {{"tau", 0.3},
                         {"n_tokens", 4},
                         {"space", "normed"},
                         {"rule", "cascade-paper"},
                         {"tokens", {"a", "<0xE2>", "b", "c"}},
                         {"layers",
                          {{{"layer", 0},
                            {"status", "ER.U"},
                            {"owner", {0, 1, 1, 1}},
                            {"cosine", {1.0, 1.0, 0.9124, -0.25}}}}}};
  EXPECT_EQ(describe({}).at("map"), expected);
}

}  // namespace
}  // namespace sluice::impl::test
