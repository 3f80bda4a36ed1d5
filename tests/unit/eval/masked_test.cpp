// Encoders on masked tokens: where masks fall, what is counted, and identities of the modes.

#include "eval/compare/masked.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "eval/compare/compare_plans.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

TEST(RowErrors, AreOfEveryRowAndLeaveZerosOut) {
  RowErrors errors;
  // Lengths 5 and 5 at a right angle, a row twice as long, a row of zeros.
  errors.add(
      row_errors(std::vector<float>{3, 4, 1, 0, 0, 0}, std::vector<float>{-4, 3, 2, 0, 1, 1}, 2));
  EXPECT_EQ(errors.cosine.count(), 2);
  EXPECT_DOUBLE_EQ(errors.cosine.mean(), (0.0 + 1) / 2);
  EXPECT_DOUBLE_EQ(errors.relative.mean(), (std::sqrt(2.0) + 1) / 2);
}

class MaskedEncoder : public testing::TestWithParam<std::tuple<const char*, ModelSetup>> {
 protected:
  static constexpr int64_t kContext = 32;

  MaskedEncoder() {
    GoldenModel golden = golden_model(std::get<0>(GetParam()));
    golden.context = kContext;
    model = std::make_unique<Model>(load(golden, std::get<1>(GetParam())));
    for (size_t i = 0; i < 90; ++i) content += static_cast<char>('A' + i * i % 7);
  }

  Plan plan(AttentionMode mode, double tau, double delta = 0) const {
    UniformAttention choice;
    choice.mode = mode;
    choice.tau = tau;
    choice.delta = delta;
    return {.attention = uniform_plan(choice, model->plan_shape())};
  }
  CompareResult compare(const std::vector<Plan>& plans, const CompareOptions& options = {}) {
    TextStream text(dir.write("text", content), tokenizer, "");
    return compare_plans(*model, text, plans, options, {});
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 64, .vocab = 32, .bos = {}, .eos = 31}};
  std::unique_ptr<Model> model;
  std::string content;
};

TEST_P(MaskedEncoder, MasksFallBySeedAndHideWhatTheyStandFor) {
  const auto windows = [&](uint64_t seed) {
    TextStream text(dir.write("text", content), tokenizer, "");
    MaskedWindows masked(*model, text, {.share = 0.3, .seed = seed}, 0);
    std::vector<std::vector<int32_t>> places;
    int64_t first = 0;
    while (masked.next()) {
      places.emplace_back(masked.places().begin(), masked.places().end());
      EXPECT_GE(masked.places().size(), 1u);
      EXPECT_LT(masked.places().size(), masked.tokens().size());
      for (size_t i = 0; i < masked.places().size(); ++i) {
        const auto at = static_cast<size_t>(masked.places()[i]);
        EXPECT_EQ(masked.tokens()[at], model->spec().mask_id);
        // The text behind its first token, which is special.
        EXPECT_EQ(masked.truth()[i], content[static_cast<size_t>(first) + at - 1] - 64);
      }
      first += std::ssize(masked.tokens());
    }
    EXPECT_EQ(masked.n_windows(), 3);
    return places;
  };
  EXPECT_EQ(windows(1), windows(1));
  EXPECT_NE(windows(1), windows(2));
}

TEST_P(MaskedEncoder, DenseWithItselfIsExactlyNothing) {
  const CompareResult result = compare({plan(AttentionMode::kDense, 0)});
  const PlanComparison& dense = result.plans.front();
  ASSERT_TRUE(dense.masked);
  EXPECT_EQ(dense.tokens.value(metric("kl_max")), 0);
  EXPECT_EQ(dense.masked->right.mean(), dense.masked->base_right.mean());
  EXPECT_EQ(dense.masked->right.count(), dense.tokens.n_tokens());
  EXPECT_EQ(dense.masked->hidden.relative.mean(), 0);
  EXPECT_EQ(dense.masked->hidden.cosine.count(), 91);  // every token counts, masked or not
  ASSERT_EQ(std::ssize(dense.masked->layers), model->spec().n_layers);
  EXPECT_EQ(dense.work.keys_read_fraction(), 1);
}

// What keeps every token is dense attention in another order of sums.
TEST_P(MaskedEncoder, EveryTokenKeptEqualsDense) {
  const CompareResult result =
      compare({plan(AttentionMode::kPaper, 0), plan(AttentionMode::kCopy, 0),
               plan(AttentionMode::kKeys, 0), plan(AttentionMode::kRefine, 0, 0)});
  const bool exact = model->backend().compute_dtype() == DType::kF32;
  for (const PlanComparison& mode : result.plans) {
    // Float32 against bf16, which keeps 8 bits.
    EXPECT_LT(mode.tokens.value(metric("kl_max")), exact ? 1e-8 : 1e-3);
    EXPECT_LT(mode.masked->hidden.relative.mean(), exact ? 1e-5 : 2e-2);
    EXPECT_GT(mode.masked->hidden.cosine.mean(), exact ? 1 - 1e-9 : 1 - 1e-3);
  }
}

TEST_P(MaskedEncoder, MergingReadsFewerKeysAndMovesRows) {
  const CompareResult result =
      compare({plan(AttentionMode::kPaper, 0.9), plan(AttentionMode::kCopy, 0.9),
               plan(AttentionMode::kKeys, 0.9), plan(AttentionMode::kRefine, 0, INFINITY)});
  for (size_t i = 0; i < 3; ++i) {
    const PlanComparison& mode = result.plans[i];
    EXPECT_LT(mode.work.keys_read_fraction(), 1) << i;
    EXPECT_GT(mode.masked->hidden.relative.mean(), 0) << i;
    for (const RowErrors& layer : mode.masked->layers) EXPECT_EQ(layer.cosine.count(), 91) << i;
  }
  // Windows are shorter than a segment: all is near.
  EXPECT_EQ(result.plans[3].work.keys_read_fraction(), 1);
}

TEST_P(MaskedEncoder, RefusesWhatCannotBeMeasured) {
  const std::vector<Plan> dense = {plan(AttentionMode::kDense, 0)};
  EXPECT_THROW(compare(dense, {.n_predict = 4}), Error);
  CompareOptions no_masks;
  no_masks.mask.share = 0;
  EXPECT_THROW(compare(dense, no_masks), Error);
  content.clear();
  EXPECT_THROW(compare(dense), Error);
}

std::string encoder_name(const testing::TestParamInfo<std::tuple<const char*, ModelSetup>>& info) {
  return test_name_of(std::get<0>(info.param), std::get<1>(info.param));
}

// Both have `mask_token_id`.
INSTANTIATE_TEST_SUITE_P(Golden, MaskedEncoder,
                         testing::Combine(testing::Values("models/esm", "models/esm-absolute"),
                                          testing::ValuesIn(kModelSetups)),
                         encoder_name);

TEST(MaskedModels, NeedAMaskAndAHead) {
  const TempDir dir;
  const ByteTokenizer tokenizer({.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63});
  for (const char* name : {"models/bert", "models/bert-nohead"}) {
    Model model = load(golden_model(name), kModelSetups.front());
    TextStream text(dir.write("text", "ABCABC"), tokenizer, "");
    EXPECT_THROW(compare_plans(model, text, std::vector<Plan>(1), {}, {}), Error) << name;
  }
}

}  // namespace
}  // namespace sluice::impl::test
