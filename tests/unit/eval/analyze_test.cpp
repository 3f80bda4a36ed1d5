// The analysis of a whole model, on golden checkpoints.

#include "eval/analyze/analyze.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "eval/analyze/paper_tables.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

class Analyze : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int64_t kWindow = 24;

  Analyze() {
    golden.context = std::max(kWindow, static_cast<int64_t>(golden.prompt.size()));
    model = std::make_unique<Model>(load(golden, {"reference", DType::kF32}));
    norms = projection_norms(*open_checkpoint(golden.path()));
    options.taus = {0.3, 0.6};
    options.spaces = {RowSpace::kResidual, RowSpace::kNormed, RowSpace::kKey};
    options.rules = {SelectRule::kCascadeCover, SelectRule::kCascadeCausal};
    options.first_deep_layer = 1;
    options.n_windows = 2;
  }

  AnalyzeResult analyze_letters(size_t n_letters) {
    std::string content;
    for (size_t i = 0; i < n_letters; ++i) content += static_cast<char>('A' + i * i % 17);
    TextStream text(dir.write("text", content), tokenizer, "|");
    return analyze(*model, norms, text, kWindow, options, [&](double done) { progress = done; });
  }
  std::vector<Profile> run(size_t n_letters) { return analyze_letters(n_letters).profiles; }

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
    RunningMean pairs;  // squares of each head's count, not the square of the mean
    for (const HeadFigures& head : layer.heads) {
      n_reps.add(head.n_reps_cascade.mean());
      pairs.add(head.n_reps_cascade.mean() * head.n_reps_cascade.mean());
    }
    EXPECT_DOUBLE_EQ(layer.sets[kCascadeSet].n_reps.mean(), n_reps.mean());
    EXPECT_DOUBLE_EQ(layer.sets[kCascadeSet].rep_pairs.mean(), pairs.mean());
    EXPECT_EQ(layer.sets[kCascadeSet].bound_tau.count(), 0);
  }
}

// The map is the leading set of the first window, so a profile of that window alone counts the
// same, and a second window changes nothing.
TEST_P(Analyze, TheMapIsTheFirstWindowsLeadingSet) {
  options.spaces = {RowSpace::kKey, RowSpace::kNormed, RowSpace::kResidual};
  options.taus = {0.6, 0.3};
  options.sinks = 2;
  options.want_map = true;
  options.n_windows = 1;
  const AnalyzeResult one = analyze_letters(100);
  ASSERT_TRUE(one.map);
  const TokenMap& map = *one.map;
  EXPECT_EQ(map.tau, 0.6);
  EXPECT_EQ(map.space, RowSpace::kNormed);
  EXPECT_EQ(map.rule, SelectRule::kCascadeCover);
  ASSERT_EQ(map.tokens.size(), static_cast<size_t>(kWindow));
  EXPECT_EQ(map.tokens[0], 63);        // the first of a document
  EXPECT_EQ(map.tokens[1], 'A' - 32);  // and the text's own
  const Profile& profile = one.profiles[1];
  ASSERT_EQ(map.layers.size(), profile.layers.size());
  size_t n_redundant = 0;
  for (size_t l = 0; l < map.layers.size(); ++l) {
    const TokenMap::Layer& layer = map.layers[l];
    int64_t n_reps = 0;
    for (size_t t = 0; t < map.tokens.size(); ++t) {
      const auto owner = static_cast<size_t>(layer.owner[t]);
      ASSERT_LT(owner, map.tokens.size());
      if (model->spec().causal) {  // in an encoder owners are anywhere
        ASSERT_LE(owner, t);
      }
      if (layer.status[t] == TokenStatus::kRedundant) {
        ++n_redundant;
        EXPECT_EQ(layer.status[owner], TokenStatus::kRepresentative) << t;
        // Cosines are rounded to float32; the rule compares them before that.
        EXPECT_GE(layer.cosine[t], threshold_of(0.6) - 0x1p-24) << t;
      } else {
        ++n_reps;  // a cover leaves nobody uncovered
        EXPECT_NE(layer.status[t], TokenStatus::kUncovered) << t;
        EXPECT_EQ(owner, t);
        EXPECT_EQ(layer.cosine[t], 1) << t;
      }
      EXPECT_EQ(layer.status[t] == TokenStatus::kExempt, t < 2) << t;
    }
    EXPECT_EQ(static_cast<double>(n_reps), profile.layers[l].sets[kCascadeSet].n_reps.mean());
  }
  EXPECT_GT(n_redundant, 0u);

  options.n_windows = 2;
  const AnalyzeResult two = analyze_letters(100);
  ASSERT_TRUE(two.map);
  EXPECT_EQ(two.profiles[1].n_windows, 2);
  EXPECT_EQ(two.map->tokens, map.tokens);
  ASSERT_EQ(two.map->layers.size(), map.layers.size());
  for (size_t l = 0; l < map.layers.size(); ++l) {
    EXPECT_EQ(two.map->layers[l].status, map.layers[l].status);
    EXPECT_EQ(two.map->layers[l].owner, map.layers[l].owner);
    EXPECT_EQ(two.map->layers[l].cosine, map.layers[l].cosine);
  }
}

TEST_P(Analyze, ThereIsNoMapUnlessAskedForNorOfHeads) {
  EXPECT_FALSE(analyze_letters(100).map);
  options.want_map = true;
  options.spaces = {RowSpace::kKey};
  EXPECT_FALSE(analyze_letters(100).map);
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

// ||W (x_s - x_t)|| <= ||W||_2 ||x_s - x_t|| for every head and pair of tokens; biases cancel.
// Rotary embedding rotates queries by their position, so those are compared without it only.
TEST_P(Analyze, ProjectionNormsBoundWhatTheModelProjects) {
  const ModelSpec& spec = model->spec();
  double largest = 0;  // share of the bound that is reached
  const auto check = [&](const AttentionSeen& seen, const ConstTensor& rows, int64_t n_heads,
                         const std::vector<double>& bounds) {
    ASSERT_EQ(bounds.size(), static_cast<size_t>(n_heads));
    const auto distance = [](const float* a, const float* b, int64_t n) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
      return std::sqrt(squares);
    };
    for (int64_t t = 1; t < rows.rows(); ++t)
      for (int64_t head = 0; head < n_heads; ++head) {
        const auto of_head = [&](int64_t row) {
          return rows.row<float>(row) + head * spec.head_dim;
        };
        const double made = distance(of_head(t), of_head(t - 1), spec.head_dim);
        const double bound =
            bounds[static_cast<size_t>(head)] *
            distance(seen.input.row<float>(t), seen.input.row<float>(t - 1), spec.d_model);
        // The norm is below the true one by 1e-6 of it, or a little more where power iteration
        // crawls; float32 sums of d_model terms add less.
        EXPECT_LE(made, bound * 1.001) << "layer " << seen.layer << " head " << head;
        if (bound > 0) largest = std::max(largest, made / bound);
      }
  };
  model->observe([&](const AttentionSeen& seen) {
    const auto layer = static_cast<size_t>(seen.layer);
    check(seen, seen.values, spec.n_kv_heads, norms.value[layer]);
    if (spec.position != PositionKind::kRotary)
      check(seen, seen.queries, spec.n_heads, norms.query[layer]);
  });
  KvCache cache = model->make_cache();
  model->forward(golden.prompt, cache);
  model->observe({});
  // Random differences reach a fair share of it: norms that are far too large would not be noticed
  // above.
  EXPECT_GT(largest, 0.3);
  EXPECT_EQ(norms.query.size(), static_cast<size_t>(spec.n_layers));
}

INSTANTIATE_TEST_SUITE_P(Models, Analyze,
                         testing::Values("models/gpt2", "models/gptj", "models/llama-gqa-tied",
                                         "models/bert", "gguf/llama-q8_0.gguf"),
                         [](const auto& test) {
                           return test_name_of(test.param, {"reference", DType::kF32});
                         });

TEST(DefaultDeepLayer, IsThePapersForItsModelsAndTheMiddleElsewhere) {
  ModelSpec spec;
  const auto deep = [&](const char* family, int64_t n_layers, int64_t d_model) {
    spec.family = family;
    spec.n_layers = n_layers;
    spec.d_model = d_model;
    return default_deep_layer(spec);
  };
  EXPECT_EQ(deep("gpt2", 12, 768), 6);
  EXPECT_EQ(deep("gptj", 28, 4096), 10);
  EXPECT_EQ(deep("opt", 32, 4096), 15);
  EXPECT_EQ(deep("llama", 32, 4096), 16);
  EXPECT_EQ(deep("gptj", 28, 192), 14);  // another model of that depth
  EXPECT_EQ(deep("gpt2", 5, 768), 3);    // l >= 2.5
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
    // Table 5 rounds Table 2's turnover to whole percents.
    for (const auto& step : paper.turnovers) {
      const auto layer =
          std::find_if(paper.layers.begin(), paper.layers.end(),
                       [&](const PaperModel::Layer& row) { return row.layer == step.layer; });
      ASSERT_NE(layer, paper.layers.end()) << step.layer;
      EXPECT_EQ(layer->n_reps_cascade, step.n_reps_cascade) << step.layer;
      EXPECT_EQ(layer->n_reps_independent, step.n_reps_independent) << step.layer;
      ASSERT_TRUE(layer->change) << step.layer;
      EXPECT_EQ(layer->change->additions, step.additions) << step.layer;
      EXPECT_EQ(layer->change->removals, step.removals) << step.layer;
      EXPECT_NEAR(layer->change->turnover, step.turnover, 0.005 + 1e-9) << step.layer;
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
