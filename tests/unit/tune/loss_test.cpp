// Losses of plans: the mean over tokens with an error over documents, changes that begin at their
// own layer, and what is kept between runs.

#include "tune/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "eval/compare/compare.h"
#include "parity/compare.h"
#include "tune/heads.h"
#include "tune/measurements.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

TEST(UnitMean, EvenUnitsGiveTheErrorOfTheirMeans) {
  UnitMean mean;
  mean.add(0, 10, 10);
  mean.add(1, 30, 10);
  mean.add(2, 20, 10);
  EXPECT_DOUBLE_EQ(mean.mean(), 2);
  EXPECT_DOUBLE_EQ(mean.standard_error(), 1 / std::sqrt(3.0));  // of 1, 3 and 2
  // Two windows of one document are one unit, not two.
  UnitMean joined;
  joined.add(7, 10, 10);
  joined.add(7, 30, 10);
  EXPECT_EQ(joined.n_units(), 1);
  EXPECT_EQ(joined.standard_error(), 0);
}

TEST(UnitMean, LargerUnitsWeighMore) {
  UnitMean mean;
  mean.add(0, 100, 100);
  mean.add(1, 0, 1);
  EXPECT_DOUBLE_EQ(mean.mean(), 100.0 / 101);
  EXPECT_LT(mean.standard_error(), 0.02);
}

class TuneLoss : public testing::TestWithParam<ModelSetup> {
 protected:
  TuneLoss() : model(load(golden_model("models/llama"), GetParam())) {
    window.tokens.resize(49);
    for (size_t i = 0; i < window.tokens.size(); ++i)
      window.tokens[i] = static_cast<int32_t>(i * i % 7);
    options.mode = AttentionMode::kKeys;
    options.windows = {8};
    options.taus = {0.5};
  }
  Model model;
  TuneWindow window;
  HeadOptions options;
};

TEST_P(TuneLoss, TheExactPlanLosesNothing) {
  const std::vector<TuneWindow> windows = {window};
  const Loss loss = PlanLosses(model, windows).of(Plan{});
  EXPECT_EQ(loss.kl.mean(), 0);
  EXPECT_EQ(loss.ppl_ratio(), 1);
  EXPECT_EQ(loss.kl.count(), 48);
}

TEST_P(TuneLoss, PlansDoNotTouchEachOther) {
  TuneWindow other = window;
  other.unit = 1;
  std::reverse(other.tokens.begin(), other.tokens.end());
  const std::vector<TuneWindow> windows = {window, other};
  const PlanShape shape = model.plan_shape();
  const std::vector<Plan> plans = {{.attention = plan_with({0, 0, 0, 0}, options, shape)},
                                   {},
                                   {.attention = plan_with({1, 0, 0, 1}, options, shape)}};
  PlanLosses losses(model, windows);
  const std::vector<Loss> together = losses.of(plans, 2);
  for (size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(together[i].kl.n_units(), 2);
    EXPECT_EQ(losses.of(plans[i]).kl.mean(), together[i].kl.mean());  // after the others
    EXPECT_EQ(PlanLosses(model, windows).of(plans[i]).kl.mean(), together[i].kl.mean());
    const double first =
        WindowReference(model, window, WindowReference::Purpose::kPlans).kl_sum(plans[i], 0);
    EXPECT_DOUBLE_EQ(losses.of({&plans[i], 1}, 1)[0].kl.mean(), first / 48);
  }
  EXPECT_GT(together[0].kl.mean(), 0);
  EXPECT_EQ(together[1].kl.mean(), 0);
}

// The residual stream before a layer is all that earlier layers hand on.
TEST_P(TuneLoss, ChangesGiveTheSameFromTheirOwnLayerOn) {
  const PlanShape shape = model.plan_shape();
  WindowReference reference(model, window, WindowReference::Purpose::kChanges);
  for (int64_t layer = 0; layer < shape.n_layers; ++layer)
    for (int64_t choice = 0; choice < options.n_choices(); ++choice) {
      const Plan plan{.attention = plan_with({layer, 0, 0, choice}, options, shape)};
      const double whole = reference.kl_sum(plan, 0), from_layer = reference.kl_sum(plan, layer);
      EXPECT_GT(whole, 0);
      EXPECT_EQ(from_layer, whole) << "layer " << layer;
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, TuneLoss, testing::ValuesIn(kModelSetups),
                         [](const auto& test) { return test_name_of("llama", test.param); });

// An encoder's loss is that of the tokens behind masks: KLs of the scores there, by hand.
TEST(TuneMaskedLoss, IsOfTheMaskedTokens) {
  Model model = load(golden_model("models/bert"), {"cpu", DType::kF32});
  TuneWindow window;
  for (int32_t i = 0; i < 32; ++i) window.tokens.push_back(5 + i * i % 7);
  window.places = {3, 10, 11, 29};
  window.truth = {6, 7, 8, 9};
  HeadOptions options;
  options.window_alone = false;
  options.deltas = {std::numeric_limits<double>::infinity()};
  options.refine = {.segment = 16, .page = 4, .tile = 16};
  options.refine = with_defaults(options.refine, /*window=*/0, /*context=*/32);
  EXPECT_EQ(options.n_choices(), 1);
  const Plan plan{.attention = plan_of_all(options, 0, options.choice(0), model.plan_shape())};
  const auto scores_by = [&](const Plan& by) {
    KvCache cache = model.make_cache(1, 32, by.attention, by.linear);
    std::vector<float> scores(static_cast<size_t>(32 * model.spec().vocab));
    model.logits(model.forward(window.tokens, cache),
                 Tensor(scores.data(), DType::kF32, {32, model.spec().vocab}));
    return scores;
  };
  const std::vector<float> exact = scores_by({}), other = scores_by(plan);
  double kl = 0, log_ratio = 0;
  const auto vocab = static_cast<size_t>(model.spec().vocab);
  for (size_t i = 0; i < window.places.size(); ++i) {
    const size_t first = static_cast<size_t>(window.places[i]) * vocab;
    BaseRow base;
    base.set(std::span(exact).subspan(first, vocab));
    const TokenComparison token =
        base.against(std::span(other).subspan(first, vocab), window.truth[i]);
    kl += token.kl;
    log_ratio += token.loss - token.base_loss;
  }
  const std::vector<TuneWindow> windows = {window};
  const Loss loss = PlanLosses(model, windows).of(plan);
  EXPECT_EQ(loss.kl.count(), 4);
  EXPECT_GT(kl, 0);
  // Scores of four rows and of 32 are summed in another order: float32 round-off.
  EXPECT_NEAR(loss.kl.mean(), kl / 4, 1e-5);
  EXPECT_NEAR(loss.log_ratio.mean(), log_ratio / 4, 1e-5);
  // And from its own layer on the same.
  WindowReference reference(model, window, WindowReference::Purpose::kChanges);
  const Plan last{.attention =
                      plan_with({model.spec().n_layers - 1, 0, 0, 0}, options, model.plan_shape())};
  EXPECT_EQ(reference.kl_sum(last, model.spec().n_layers - 1), reference.kl_sum(last, 0));
}

class SplitText : public testing::Test {
 protected:
  TextSplit split(const std::string& content, const SplitOptions& options) {
    TextStream text(dir.write("text", content), tokenizer, "|");
    return split_text(text, options);
  }
  static std::string documents(const std::vector<int>& lengths) {
    std::string text;
    for (size_t i = 0; i < lengths.size(); ++i)
      text += std::string(static_cast<size_t>(lengths[i]), static_cast<char>('A' + i % 26)) + "|";
    return text;
  }
  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
};

TEST_F(SplitText, NoDocumentIsInBoth) {
  const std::string text = documents(std::vector<int>(26, 40));
  for (const uint32_t seed : {0u, 1u, 2u}) {
    const TextSplit found =
        split(text, {.context = 16, .n_calibration = 6, .n_held_out = 8, .seed = seed});
    EXPECT_EQ(found.calibration.size(), 6u);
    EXPECT_EQ(found.held_out.size(), 8u);
    std::set<int32_t> letters;
    for (const TuneWindow& window : found.calibration) {
      EXPECT_EQ(window.tokens.size(), 17u);
      letters.insert(window.tokens.back());
    }
    for (const TuneWindow& window : found.held_out)
      EXPECT_FALSE(letters.contains(window.tokens.back()));
    EXPECT_FALSE(found.one_document);
  }
}

TEST_F(SplitText, SeedsDecideAndNothingElse) {
  const std::string text = documents(std::vector<int>(26, 40));
  const SplitOptions options{.context = 16, .n_calibration = 4, .n_held_out = 4, .seed = 5};
  SplitOptions other = options;
  other.seed = 6;
  const auto first_letters = [](const TextSplit& split) {
    std::vector<int32_t> letters;
    for (const TuneWindow& window : split.calibration) letters.push_back(window.tokens.back());
    return letters;
  };
  EXPECT_EQ(first_letters(split(text, options)), first_letters(split(text, options)));
  EXPECT_NE(first_letters(split(text, options)), first_letters(split(text, other)));
}

TEST_F(SplitText, ShortDocumentsAreJoinedAndOneLongOneIsCut) {
  const TextSplit joined = split(documents(std::vector<int>(26, 5)),
                                 {.context = 16, .n_calibration = 2, .n_held_out = 4});
  EXPECT_FALSE(joined.held_out.empty());
  const TextSplit cut =
      split(std::string(200, 'A'), {.context = 16, .n_calibration = 2, .n_held_out = 4});
  EXPECT_TRUE(cut.one_document);
  EXPECT_EQ(cut.calibration.size(), 2u);
  EXPECT_EQ(cut.held_out.size(), 4u);
  EXPECT_THROW(split("AAAA", {.context = 16}), Error);
  EXPECT_THROW(split(std::string(40, 'A'), {.context = 16}), Error);
  // A long document and a short one behind it.
  EXPECT_TRUE(split(std::string(200, 'A') + "|BB", {.context = 16}).one_document);
}

}  // namespace
}  // namespace sluice::impl::test
