// Joint selection over windows of a text, on golden checkpoints.

#include "eval/analyze/joint_profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/analyze/analyze.h"
#include "eval/analyze/one_pass.h"
#include "eval/calibrate.h"
#include "subspace/eigen.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

class JointSelection : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int64_t kWindow = 24;

  JointSelection() {
    golden.context = std::max(kWindow, static_cast<int64_t>(golden.prompt.size()));
    model = std::make_unique<Model>(load(golden, {GetParam().c_str(), DType::kF32}));
    options.tau = 0.6;
    options.n_tokens = kWindow;
    options.n_windows = 2;
    options.ranks = {2, model->spec().d_model};
  }
  TextStream letters(size_t n) const {
    std::string content;
    for (size_t i = 0; i < n; ++i) content += static_cast<char>('A' + i * i % 17);
    return {dir.write("text", content), tokenizer, "|"};
  }
  Bases bases() {
    TextStream text = letters(300);
    return bases_after(*model, text, 2 * kWindow, options, {});
  }
  JointProfile run(const Bases& with) {
    check_bases(with, model->spec().n_layers, options);
    TextStream text = letters(300);
    return profile_joint(*model, text, with, options, [&](double done) { progress = done; });
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
  GoldenModel golden = golden_model("models/gpt2");
  std::unique_ptr<Model> model;
  JointOptions options;
  double progress = 0;
};

TEST_P(JointSelection, CountsEveryPairOnceAndWholeBasesDropMost) {
  const JointProfile profile = run(bases());
  EXPECT_EQ(progress, 1);
  EXPECT_EQ(profile.n_windows, 2);
  ASSERT_EQ(profile.layers.size(), static_cast<size_t>(model->spec().n_layers));
  for (const JointLayer& layer : profile.layers) {
    EXPECT_GT(layer.seconds, 0);
    EXPECT_EQ(layer.products.count(), 2);
    ASSERT_EQ(layer.ranks.size(), 2u);
    for (const JointFigures& figures : layer.ranks) {
      for (const JointTimes& times : {figures.times.always, figures.times.where_pays}) {
        EXPECT_GT(times.seconds, 0);
        EXPECT_GT(times.speedup.low, 0);
        EXPECT_LE(times.speedup.low, times.speedup.middle);
        EXPECT_LE(times.speedup.middle, times.speedup.high);
      }
      EXPECT_LE(figures.products.mean(), figures.pairs.mean());
    }
    // Coordinates of a whole basis leave nothing out, so what is not near is dropped.
    EXPECT_NEAR(layer.ranks[1].energy, 1, 1e-6);
    EXPECT_GE(layer.ranks[1].dropped_fraction.mean(), layer.ranks[0].dropped_fraction.mean());
    if (GetParam() == "reference") {
      EXPECT_GT(layer.ranks[1].dropped_fraction.mean(), 0);
    }
  }
}

// The sets that are followed are analyze's leading ones. (Its exact cosines take products too, but
// for the reference's.)
TEST_P(JointSelection, FollowsTheLeadingSetOfAnalyze) {
  for (const SelectRule rule : {SelectRule::kCascadeCover, SelectRule::kGreedy}) {
    options.rule = rule;
    const JointProfile joint = run(bases());
    AnalyzeOptions asked;
    asked.taus = {options.tau};
    asked.spaces = {options.space};
    asked.rules = {rule};
    asked.n_windows = options.n_windows;
    TextStream text = letters(300);
    const ProjectionNorms norms = projection_norms(*open_checkpoint(golden.path()));
    const Profile profile = analyze(*model, norms, text, kWindow, asked, {}).profiles.at(0);
    for (size_t l = 0; l < joint.layers.size(); ++l) {
      const SetFigures& leading = profile.layers[l].sets[leading_set(asked.rules)];
      EXPECT_EQ(joint.layers[l].n_reps.mean(), leading.n_reps.mean()) << l;
      if (GetParam() == "reference") {
        EXPECT_EQ(joint.layers[l].products.mean(), leading.products_computed.mean()) << l;
      }
    }
  }
}

// It throws where a set differs from that of selection without a basis.
TEST_P(JointSelection, OnePassUpdatesAllAtThresholdZeroAndNoneAtOne) {
  options.ranks = {4};
  TextStream text = letters(300);
  const auto profiles = profile_one_pass(*model, text, options, {0, 1});
  ASSERT_EQ(profiles.size(), 2u);
  const int64_t n_layers = model->spec().n_layers;
  EXPECT_EQ(profiles[0].fresh_updates(), 4 * (n_layers - 1));
  EXPECT_EQ(profiles[0].updates.mean(), static_cast<double>(profiles[0].fresh_updates()));
  EXPECT_EQ(profiles[1].updates.mean(), 0);
  EXPECT_EQ(profiles[0].updates.count(), options.n_windows);
  EXPECT_EQ(profiles[0].set_alone.mean(), profiles[1].set_alone.mean());
  for (size_t l = 0; l < static_cast<size_t>(n_layers); ++l) {
    EXPECT_LE(profiles[1].layers[l].energy.mean(), profiles[0].layers[l].energy.mean() + 1e-9);
    EXPECT_EQ(profiles[1].layers[l].residual.count(), l == 0 ? 0 : options.n_windows);
  }
}

TEST(OnePass, WorkIsCountedByHand) {
  OnePassCounts counts{.n_tokens = 10,
                       .d = 4,
                       .rank = 2,
                       .has_before = true,
                       .updated = false,
                       .plain_products = 30,
                       .pairs = 28,
                       .products = 5};
  const OnePassWork inherited = one_pass_work(counts);
  EXPECT_EQ(inherited.set_alone, 30 * 4);
  EXPECT_EQ(inherited.apart, 30 * 4 + 10 * 2 * 4);
  EXPECT_EQ(inherited.together, 10 * 2 * 4 + 28 * 2 + 5 * 4);
  counts.updated = true;
  const double update = 10.0 * 4 * 4 / 2 + eigen_work(4, 2);
  EXPECT_EQ(one_pass_work(counts).apart, inherited.apart + update);
  EXPECT_EQ(one_pass_work(counts).together, inherited.together + update + 10 * 2 * 4);
  counts.has_before = false;  // the first layer: nothing to look at before the update
  EXPECT_EQ(one_pass_work(counts).apart, inherited.set_alone + update);
}

TEST_P(JointSelection, BasesComeFromTheRestOfTheText) {
  const Bases made = bases();
  // A token that opens the document goes with the letters; windows hold at most the context.
  EXPECT_EQ(made.n_tokens, std::min<int64_t>(301 - 2 * kWindow, 16 * model->context()));
  for (const Basis& basis : made.list) EXPECT_EQ(basis.input, BasisInput::kSelectionNormed);
  EXPECT_EQ(made.list.size(), static_cast<size_t>(model->spec().n_layers));
}

TEST_P(JointSelection, RefusesBasesThatDoNotDo) {
  const auto message = [&](const Bases& with) -> std::string {
    try {
      check_bases(with, model->spec().n_layers, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Bases made = bases();
  EXPECT_EQ(message(made), "");
  options.space = RowSpace::kResidual;
  EXPECT_EQ(message(made), "the bases have no selection_residual for layer 0");
  options.space = RowSpace::kNormed;
  made.list.back().rank = 3;
  EXPECT_EQ(message(made),
            "--rank " + std::to_string(model->spec().d_model) + " is more than the bases' 3");
}

TEST_P(JointSelection, IsDescribedLayerByLayer) {
  options.space = RowSpace::kResidual;
  JointProfile profile = run(bases());
  profile.bases.text_path = "text";
  const nlohmann::json described = describe_joint(profile);
  EXPECT_EQ(described.at("space"), "residual");
  EXPECT_TRUE(described.at("bases").at("path").is_null());
  EXPECT_EQ(described.at("bases").at("text").at("path"), "text");
  EXPECT_TRUE(described.at("bases").at("same_text").is_null());
  EXPECT_EQ(described.at("summary").at("ranks").size(), options.ranks.size());
  ASSERT_EQ(described.at("layers").size(), profile.layers.size());
  for (const nlohmann::json& layer : described.at("layers"))
    for (const nlohmann::json& rank : layer.at("ranks")) {
      const double pairs = rank.at("pairs"), products = rank.at("products");
      EXPECT_GE(rank.at("dropped_fraction"), 0.0);
      EXPECT_NEAR(rank.at("dropped_fraction"), pairs > 0 ? 1 - products / pairs : 0, 0.1);
      EXPECT_GE(rank.at("dropped_fraction_where_pays"), 0.0);
      EXPECT_LE(rank.at("dropped_fraction_where_pays"), 1.0);
      EXPECT_GE(pairs, products);
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, JointSelection, testing::Values("reference", "cpu"));

}  // namespace
}  // namespace sluice::impl::test
