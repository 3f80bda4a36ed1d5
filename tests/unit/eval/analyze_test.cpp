// The analysis of a whole model, on golden checkpoints.

#include "eval/analyze.h"

#include <gtest/gtest.h>

#include "eval/paper_tables.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::test {
namespace {

constexpr int64_t kWindow = 24;

class Analyze : public testing::TestWithParam<std::string> {
 protected:
  Analyze() {
    golden.context = kWindow;
    model = std::make_unique<Model>(load(golden, {"reference", DType::kF32}));
    norms = projection_norms(*open_checkpoint(golden.path()));
    options.taus = {0.3, 0.6};
    options.spaces = {RowSpace::kResidual, RowSpace::kNormed, RowSpace::kKey};
    options.cascades = {SelectRule::kCascadeCover, SelectRule::kCascadeCausal};
    options.first_deep_layer = 1;
    options.n_windows = 2;
  }

  std::vector<Profile> run(size_t n_letters) {
    std::string content;
    for (size_t i = 0; i < n_letters; ++i) content += static_cast<char>('A' + i * i % 17);
    TextStream text(dir.write("text", content), tokenizer, "|");
    return analyze(*model, norms, text, kWindow, options, [&](double done) { progress = done; });
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
  GoldenModel golden = golden_model(GetParam());
  std::unique_ptr<Model> model;
  ProjectionNorms norms;
  AnalyzeOptions options;
  double progress = 0;
};

TEST_P(Analyze, ProfilesEveryTauAndSpace) {
  const auto profiles = run(100);
  ASSERT_EQ(profiles.size(), 6u);
  EXPECT_EQ(progress, 1);
  const ModelSpec& spec = model->spec();
  for (size_t i = 0; i < profiles.size(); ++i) {
    const Profile& profile = profiles[i];
    EXPECT_EQ(profile.tau, options.taus[i / 3]);
    EXPECT_EQ(profile.space, options.spaces[i % 3]);
    EXPECT_EQ(profile.n_windows, 2);
    ASSERT_EQ(profile.layers.size(), static_cast<size_t>(spec.n_layers));
    for (const LayerFigures& layer : profile.layers) {
      ASSERT_EQ(layer.sets.size(), 6u);
      for (const SetFigures& set : layer.sets) EXPECT_EQ(set.n_reps.count(), 2);
      // Guarantees of docs/algorithm.md, section 2, in position order for encoders too.
      for (const size_t cover : {kGreedySet, kCascadeSet})
        EXPECT_EQ(layer.sets[cover].uncovered.mean(), 0);
      EXPECT_EQ(layer.sets[kCascadeSet + 1].recall.mean(), 1);
      EXPECT_EQ(layer.heads.size(),
                static_cast<size_t>(profile.space == RowSpace::kKey ? spec.n_kv_heads : 0));
    }
    RunningMean n_reps;
    for (const LayerFigures& layer : profile.layers)
      n_reps.add(layer.sets[kIndependentSet].n_reps.mean());
    EXPECT_DOUBLE_EQ(profile.summaries[kIndependentSet].n_reps.mean(), n_reps.mean());
  }
}

TEST_P(Analyze, KeySpaceFiguresAreMeansOverHeads) {
  options.spaces = {RowSpace::kKey};
  options.n_windows = 1;
  const auto profiles = run(100);
  for (const LayerFigures& layer : profiles[1].layers) {
    RunningMean n_reps;
    for (const HeadFigures& head : layer.heads) n_reps.add(head.n_reps_cascade.mean());
    EXPECT_DOUBLE_EQ(layer.sets[kCascadeSet].n_reps.mean(), n_reps.mean());
    EXPECT_EQ(layer.sets[kCascadeSet].bound_tau.count(), 0);
  }
}

TEST_P(Analyze, StopsWhereTheTextEnds) { EXPECT_EQ(run(kWindow + 3)[0].n_windows, 1); }

TEST_P(Analyze, ATextShorterThanAWindowIsAnErrorThatCountsIt) {
  expect_error([&] { run(10); }, {"11 tokens", "24"});
}

TEST_P(Analyze, LeavesTheModelUnobserved) {
  run(100);
  const double before = progress;
  KvCache cache = model->make_cache();
  model->forward(std::vector<int32_t>{1, 2, 3}, cache);
  EXPECT_EQ(progress, before);
}

// Norms of the matrices as the model reads them: the largest singular value is at least the length
// of any row.
TEST_P(Analyze, EveryHeadHasItsProjectionNorms) {
  const ModelSpec& spec = model->spec();
  ASSERT_EQ(norms.query.size(), static_cast<size_t>(spec.n_layers));
  for (size_t l = 0; l < norms.query.size(); ++l) {
    EXPECT_EQ(norms.query[l].size(), static_cast<size_t>(spec.n_heads));
    EXPECT_EQ(norms.value[l].size(), static_cast<size_t>(spec.n_kv_heads));
    for (const double norm : norms.query[l]) EXPECT_GT(norm, 0);
    for (const double norm : norms.value[l]) EXPECT_GT(norm, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Analyze,
                         testing::Values("models/gpt2", "models/gptj", "models/llama-gqa-tied",
                                         "models/bert", "gguf/llama-q8_0.gguf"),
                         [](const auto& test) {
                           return test_name_of(test.param, {"reference", DType::kF32});
                         });

TEST(DefaultDeepLayer, IsThePapersForItsFamiliesAndDepths) {
  ModelSpec spec;
  const auto deep = [&](const char* family, int64_t n_layers) {
    spec.family = family;
    spec.n_layers = n_layers;
    return default_deep_layer(spec);
  };
  EXPECT_EQ(deep("gpt2", 12), 6);
  EXPECT_EQ(deep("gptj", 28), 10);
  EXPECT_EQ(deep("opt", 32), 15);
  EXPECT_EQ(deep("llama", 32), 16);
  EXPECT_EQ(deep("gpt2", 5), 3);  // l >= 2.5
}

TEST(PaperTables, BelongToThePapersModelsOnly) {
  ModelSpec spec;
  spec.family = "gpt2";
  spec.n_layers = 12;
  spec.d_model = 768;
  ASSERT_NE(paper_model_of(spec), nullptr);
  EXPECT_EQ(paper_model_of(spec)->name, "GPT-2 124M");
  spec.d_model = 192;
  EXPECT_EQ(paper_model_of(spec), nullptr);
}

// The paper's own arithmetic: what it rounds must agree with what it counts.
TEST(PaperTables, AgreeWithThemselves) {
  for (const PaperModel& paper : paper_models()) {
    const double whole = double{kPaperTokens} * kPaperTokens * paper.n_layers;
    EXPECT_NEAR(paper.gram.independent_products, whole, 0.005e6) << paper.name;
    EXPECT_NEAR(1 - paper.gram.cascade_products / paper.gram.independent_products,
                paper.gram.savings, 0.005)
        << paper.name;
    for (const auto& row : paper.coherence)
      EXPECT_NEAR(row.jaccard,
                  double{1} * row.intersection / (row.n_reps + row.n_reps_next - row.intersection),
                  0.001)
          << paper.name << " layer " << row.layer;
  }
}

}  // namespace
}  // namespace sluice::test
