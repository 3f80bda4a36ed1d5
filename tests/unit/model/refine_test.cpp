// What must hold of refined attention in every family: its limits, the future that changes nothing,
// and pieces that give what the whole gives. docs/algorithm.md, section 7.

#include <limits>

#include "parity/compare.h"
#include "sanitized.h"
#include "unit/model/family_models.h"

namespace sluice::impl::test {
namespace {

class RefinedFamily : public FamilyTest {
 protected:
  std::vector<float> run(const AttentionPlan& plan, const std::vector<int32_t>& text) {
    KvCache cache = model->make_cache(1, 0, plan);
    return hidden_of(*model, text, cache);
  }
  // Segments so short that short texts have clusters, and every query for itself.
  AttentionPlan strict(double delta) const {
    UniformAttention choice;
    choice.mode = AttentionMode::kRefine;
    choice.sinks = 0;
    choice.window = 0;
    choice.delta = delta;
    choice.refine.segment = 16;
    choice.refine.tile = 1;
    return uniform_plan(choice, model->plan_shape());
  }
  // As in attention_test.cpp.
  double round_off(const std::vector<float>& values) const {
    return (setup().dtype == DType::kF32 ? 5e-6 : 2 * 0x1p-7) * range_of(values);
  }

  // The reference is slow; 37 tokens have clusters too.
  const std::vector<int32_t> tokens =
      repeating_tokens(setup().is_reference() ? 37 : std::min<int64_t>(family().n_tokens, 129));
};

TEST_P(RefinedFamily, DeltaZeroEqualsDense) {
  const auto dense = run({}, tokens);
  EXPECT_CLOSE(run(strict(0), tokens), dense, round_off(dense));
}

TEST_P(RefinedFamily, MeansChangeTheResult) {
  const auto dense = run({}, tokens);
  const auto means = run(strict(std::numeric_limits<double>::infinity()), tokens);
  double difference = 0;
  for (size_t i = 0; i < dense.size(); ++i)
    difference = std::max(difference, std::abs(double{means[i]} - dense[i]));
  EXPECT_GT(difference, 1e-4 * range_of(dense));
}

// Over a grid of eight: what is opened more loses no more, within the standard error of the tokens'
// differences.
TEST_P(RefinedFamily, ASmallerDeltaLosesNoMore) {
  if (is_encoder(family()) || setup().dtype != DType::kF32 || setup().is_reference())
    GTEST_SKIP() << "the loss of causal models, in f32 on the fast backends";
  const auto logits = [&](const AttentionPlan& plan) {
    KvCache cache = model->make_cache(1, 0, plan);
    return logits_of(*model, tokens, cache);
  };
  const auto vocab = static_cast<size_t>(model->spec().vocab);
  const auto dense = logits({});
  const auto log_probability = [&](const std::vector<float>& from, size_t row) {
    const float* x = from.data() + row * vocab;
    const double largest = double{*std::max_element(x, x + vocab)};
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{x[i]} - largest);
    std::vector<double> found;
    for (size_t i = 0; i < vocab; ++i) found.push_back(double{x[i]} - largest - std::log(sum));
    return found;
  };
  std::vector<double> before;  // KL by token at the larger delta
  for (const double delta : {1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0}) {
    const auto got = logits(strict(delta));
    std::vector<double> kl;
    for (size_t row = 0; row < tokens.size(); ++row) {
      const auto exact = log_probability(dense, row), read = log_probability(got, row);
      double sum = 0;
      for (size_t i = 0; i < vocab; ++i) sum += std::exp(exact[i]) * (exact[i] - read[i]);
      kl.push_back(sum);
    }
    if (!before.empty()) {
      const auto n = static_cast<double>(kl.size());
      double sum = 0, squares = 0;
      for (size_t i = 0; i < kl.size(); ++i) {
        sum += kl[i] - before[i];
        squares += (kl[i] - before[i]) * (kl[i] - before[i]);
      }
      const double error = std::sqrt(std::max(squares - sum * sum / n, 0.0)) / n;
      EXPECT_LE(sum / n, 2 * error + 1e-9) << "delta " << delta;
    }
    before = std::move(kl);
  }
}

TEST_P(RefinedFamily, TheFutureChangesNothing) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders see the future";
  const size_t kept = tokens.size() * 2 / 3, n = kept * static_cast<size_t>(model->spec().d_model);
  auto changed = tokens;
  for (size_t i = kept; i < changed.size(); ++i) changed[i] = 20 + static_cast<int32_t>(i % 30);
  auto first = run(strict(0.05), tokens), second = run(strict(0.05), changed);
  EXPECT_NE(first, second);
  first.resize(n);
  second.resize(n);
  // On a GPU queries pass together over what any of them opened: round-off alone.
  if (setup().on_device())
    EXPECT_CLOSE(second, first, round_off(first));
  else
    EXPECT_SAME_BITS(second, first);
}

// Opening everything, so that no estimate can fall to the other side of delta; that decisions are
// those of the whole is tested on single layers (attend_refine_test.cpp).
TEST_P(RefinedFamily, PiecesGiveWhatTheWholeGives) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders take a text whole";
  for (const double delta : {0.0, std::numeric_limits<double>::infinity()}) {
    const auto whole = run(strict(delta), tokens);
    KvCache cache = model->make_cache(1, 0, strict(delta));
    EXPECT_CLOSE(hidden_in_pieces(*model, tokens, cache), whole, round_off(whole));
    const CacheMemory memory = cache.memory();
    EXPECT_GE(memory.bytes.total(), memory.dense_bytes);
    EXPECT_LE(memory.share_of_dense(), 1.4);
  }
}

TEST_P(RefinedFamily, ACacheThatForgotBeginsAnew) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders take a text whole";
  const auto whole = run(strict(0.05), tokens);
  KvCache cache = model->make_cache(1, 0, strict(0.05));
  hidden_of(*model, repeating_tokens(30, 9), cache);
  cache.truncate(0);
  EXPECT_CLOSE(hidden_of(*model, tokens, cache), whole, round_off(whole));
}

INSTANTIATE_TEST_SUITE_P(Refine, RefinedFamily,
                         testing::Combine(testing::ValuesIn(thinned(family_cases(), 3)),
                                          testing::ValuesIn(family_setups())),
                         family_test_name);

}  // namespace
}  // namespace sluice::impl::test
