// Windows divided over ranks, which are threads here: the same figures on any number of them.

#include <gtest/gtest.h>

#include "eval/calibrate.h"
#include "eval/compare/compare_plans.h"
#include "eval/compare/perplexity.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/ranks/thread_ranks.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

class Divided : public testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kContext = 16;

  Divided() {
    std::string content;
    for (size_t i = 0; i < 110; ++i) content += static_cast<char>('A' + i * i % 7);
    path_ = dir_.write("text", content);
  }

  // use(model, communicator) in each rank, with a model of its own.
  template <typename Use>
  void on_all(const Use& use) {
    on_ranks(GetParam(), [&](Communicator& ranks) {
      GoldenModel golden = golden_model("models/llama");
      golden.context = kContext;
      Model model = load(golden, {"cpu", DType::kF32});
      use(model, ranks);
    });
  }
  TextStream text() const { return {path_, tokenizer_, ""}; }

  const TempDir dir_;
  std::string path_;
  const ByteTokenizer tokenizer_{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
};

TEST_P(Divided, PerplexityIsTheSame) {
  on_all([&](Model& model, Communicator& ranks) {
    TextStream one = text(), several = text();
    const PerplexityResult expected = evaluate_perplexity(model, one, {.n_batch = 2}, {});
    std::vector<int64_t> seen;
    const PerplexityResult found = evaluate_perplexity(
        model, several, {.n_batch = 2, .communicator = &ranks},
        [&](const PerplexityResult& so_far) { seen.push_back(so_far.n_windows); });
    EXPECT_EQ(found.n_windows, 7);
    EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(found.loss.mean(), expected.loss.mean());
    EXPECT_EQ(found.loss.standard_error(), expected.loss.standard_error());
  });
}

// docs/scale.md, "What travels". 110 predicted tokens are six windows of 16 and one of 14.
TEST_P(Divided, EightBytesAreSentForEachTokenOfAWindow) {
  on_all([&](Model& model, Communicator& ranks) {
    TextStream several = text();
    evaluate_perplexity(model, several, {.communicator = &ranks}, {});
    const int64_t n = ranks.size(), n_rounds = (7 + n - 1) / n, last = 7 % n == 1 ? 14 : 16;
    // A size, the number of items and two lengths of lists come with each part.
    EXPECT_EQ(ranks.bytes_sent(),
              (n - 1) * (n_rounds * (3 * 8 + 4) + 8 * ((n_rounds - 1) * 16 + last)));
    EXPECT_EQ(ranks.messages_sent(), (n - 1) * n_rounds * 2);
  });
}

TEST_P(Divided, ComparisonsAreTheSame) {
  on_all([&](Model& model, Communicator& ranks) {
    std::vector<Plan> plans;
    for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kRefine}) {
      UniformAttention choice;
      choice.mode = mode;
      choice.tau = 0.3;
      choice.window = choice.block = 4;
      choice.refine = {.segment = 8, .page = 4, .tile = 4};
      plans.push_back({.attention = uniform_plan(choice, model.plan_shape())});
    }
    TextStream one = text(), several = text();
    const CompareResult expected = compare_plans(model, one, plans, {.n_predict = 3}, {});
    const CompareResult found =
        compare_plans(model, several, plans, {.n_predict = 3, .communicator = &ranks}, {});
    EXPECT_EQ(found.n_windows, expected.n_windows);
    EXPECT_EQ(found.first_tokens, expected.first_tokens);
    for (size_t i = 0; i < plans.size(); ++i) {
      const PlanComparison &a = found.plans[i], &b = expected.plans[i];
      for (const Metric& metric : kMetrics)
        EXPECT_EQ(a.tokens.value(metric), b.tokens.value(metric)) << metric.key;
      EXPECT_EQ(a.first_kl, b.first_kl);
      EXPECT_EQ(a.work.keys_read_fraction(), b.work.keys_read_fraction());
      EXPECT_EQ(a.work.selection_products(), b.work.selection_products());
      EXPECT_EQ(a.work.refine_reads().size(), b.work.refine_reads().size());
      EXPECT_EQ(a.linear.weight_bytes_fraction(), b.linear.weight_bytes_fraction());
      EXPECT_EQ(a.generation_match.mean(), b.generation_match.mean());
      EXPECT_EQ(a.cache.n_tokens, b.cache.n_tokens);
    }
  });
}

// Five windows and a shorter one; a rank more than windows would have nothing to do.
TEST_P(Divided, BasesAreTheSame) {
  on_all([&](Model& model, Communicator& ranks) {
    CalibrateOptions options;
    options.inputs = linear_inputs(model.spec());
    options.inputs.push_back(BasisInput::kSelectionNormed);
    options.ranks = {2, 4};
    options.n_windows = 6;
    options.sinks = 1;
    TextStream one = text(), several = text();
    const Calibration expected = calibrate(model, one, options, {});
    options.communicator = &ranks;
    const Calibration found = calibrate(model, several, options, {});
    EXPECT_EQ(found.n_windows, expected.n_windows);
    ASSERT_EQ(found.bases.list.size(), expected.bases.list.size());
    for (size_t i = 0; i < found.bases.list.size(); ++i) {
      EXPECT_EQ(found.bases.list[i].layer, expected.bases.list[i].layer);
      EXPECT_EQ(found.bases.list[i].input, expected.bases.list[i].input);
      EXPECT_EQ(found.bases.list[i].vectors, expected.bases.list[i].vectors);
      EXPECT_EQ(found.groups[i].energies, expected.groups[i].energies);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Divided, testing::Values(1, 2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace sluice::impl::test
