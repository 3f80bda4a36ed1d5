// Perplexity against a plain computation from logits in float64.

#include "eval/compare/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

class Perplexity : public testing::TestWithParam<ModelSetup> {
 protected:
  static constexpr int64_t kContext = 16;

  Perplexity() {
    GoldenModel golden = golden_model("models/gpt2");
    golden.context = kContext;
    model = std::make_unique<Model>(load(golden, GetParam()));
  }

  PerplexityResult evaluate(const std::string& content, int64_t max_windows = 0) {
    TextStream text(dir.write("text", content), tokenizer, "|");
    n_progress = 0;
    return evaluate_perplexity(
        *model, text, {.max_windows = max_windows},
        [&](const PerplexityResult& so_far) { EXPECT_EQ(so_far.n_windows, ++n_progress); });
  }

  // Losses of tokens begin + 1 ... end, each window of kContext tokens read alone.
  std::vector<double> plain_losses(const std::vector<int32_t>& tokens) {
    std::vector<double> losses;
    const auto vocab = static_cast<size_t>(model->spec().vocab);
    for (size_t begin = 0; begin + 1 < tokens.size(); begin += kContext) {
      const size_t n = std::min<size_t>(kContext, tokens.size() - 1 - begin);
      const auto first = tokens.begin() + static_cast<int64_t>(begin);
      KvCache cache = model->make_cache();
      const auto logits = logits_of(*model, {first, first + static_cast<int64_t>(n)}, cache);
      for (size_t row = 0; row < n; ++row) {
        double total = 0;
        for (size_t i = 0; i < vocab; ++i) total += std::exp(double{logits[row * vocab + i]});
        const auto target = static_cast<size_t>(tokens[begin + row + 1]);
        losses.push_back(std::log(total) - double{logits[row * vocab + target]});
      }
    }
    return losses;
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
  std::unique_ptr<Model> model;
  int64_t n_progress = 0;
};

TEST_P(Perplexity, EveryTokenButTheFirstCountsOnceInWindows) {
  // 1, 2 and 3 tokens, and one below, at and above one and two windows.
  for (const size_t n_letters : {1, 2, 14, 15, 16, 17, 31, 32, 33, 70}) {
    std::string content;
    for (size_t i = 0; i < n_letters; ++i) content += static_cast<char>('A' + i * i % 23);
    auto tokens = tokenizer.encode(content, false);
    tokens.insert(tokens.begin(), 63);
    const auto losses = plain_losses(tokens);
    ASSERT_EQ(losses.size(), n_letters);
    double mean = 0, squares = 0;
    for (const double x : losses) mean += x / static_cast<double>(n_letters);
    for (const double x : losses) squares += (x - mean) * (x - mean);

    const auto result = evaluate(content);
    SCOPED_TRACE(n_letters);
    EXPECT_EQ(result.loss.count(), static_cast<int64_t>(n_letters));
    EXPECT_EQ(result.n_windows, static_cast<int64_t>((n_letters + kContext - 1) / kContext));
    EXPECT_EQ(n_progress, result.n_windows);
    // The sum over exp is rounded to f32 as are the logits: both below 32, so 2^-20 each.
    EXPECT_NEAR(result.loss.mean(), mean, 2e-6);
    EXPECT_NEAR(result.perplexity(), std::exp(mean), 2e-6 * std::exp(mean));
    if (n_letters < 2) continue;
    const auto n = static_cast<double>(n_letters);
    const double error = std::sqrt(squares / (n - 1) / n);
    EXPECT_NEAR(result.loss.standard_error(), error, 2e-6);
    EXPECT_NEAR(result.standard_error(), std::exp(mean) * error,
                2e-6 * std::exp(mean) * (1 + error));
  }
}

TEST_P(Perplexity, WindowsRunAcrossDocuments) {
  const auto result = evaluate("FIRST DOCUMENT|SECOND ONE");
  std::vector<int32_t> tokens = {63};
  for (const int32_t id : tokenizer.encode("FIRST DOCUMENT", false)) tokens.push_back(id);
  tokens.push_back(63);
  for (const int32_t id : tokenizer.encode("SECOND ONE", false)) tokens.push_back(id);
  double mean = 0;
  const auto losses = plain_losses(tokens);
  for (const double x : losses) mean += x / static_cast<double>(losses.size());
  EXPECT_EQ(result.loss.count(), 25);
  EXPECT_NEAR(result.loss.mean(), mean, 2e-6);
}

TEST_P(Perplexity, StopsAfterTheWindowsAskedFor) {
  const auto result = evaluate(std::string(100, 'Z'), 2);
  EXPECT_EQ(result.n_windows, 2);
  EXPECT_EQ(result.loss.count(), 2 * kContext);
}

TEST_P(Perplexity, ATextWithNothingToPredictIsAnError) {
  expect_error([&] { evaluate(""); }, {"fewer than two tokens"});
}

INSTANTIATE_TEST_SUITE_P(All, Perplexity,
                         testing::Values(ModelSetup{"reference", DType::kF32},
                                         ModelSetup{"cpu", DType::kF32}),
                         [](const auto& test) { return test_name_of("gpt2", test.param); });

TEST(PerplexityOfAnEncoder, IsRefused) {
  Model model = load(golden_model("models/bert"), {"cpu", DType::kF32});
  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64}};
  TextStream text(dir.write("text", "ABC"), tokenizer, "");
  EXPECT_THROW(evaluate_perplexity(model, text, {}, {}), Error);
}

}  // namespace
}  // namespace sluice::impl::test
