// Needles among windows of text: where they are, and what becomes of a plan that loses one.

#include "tune/needles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tune/contract.h"
#include "tune/heads.h"
#include "tune/tune.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

// A word is a token: its letters' sum within the vocabulary.
class WordTokenizer final : public ByteTokenizer {
 public:
  WordTokenizer() : ByteTokenizer({.first_byte = 32, .vocab = 64}) {}
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(' ', begin + 1), text.size());
      int32_t sum = 0;
      for (const char c : text.substr(begin, end - begin)) sum = (31 * sum + c) % 63;
      ids.push_back(sum);
      begin = end;
    }
    return ids;
  }
};

TextSplit split_of(int64_t n_calibration, int64_t n_held_out) {
  TextSplit split;
  split.n_calibration_units = n_calibration;
  split.n_held_out_units = n_held_out;
  for (int64_t i = 0; i < n_calibration + n_held_out; ++i)
    (i < n_calibration ? split.calibration : split.held_out)
        .push_back({.tokens = std::vector<int32_t>(49, static_cast<int32_t>(i)), .unit = i});
  return split;
}

TEST(AddNeedles, OneToEveryEightWindowsAndAtLeastOne) {
  const WordTokenizer tokenizer;
  TextSplit split = split_of(2, 17);
  add_needles(tokenizer, 5, split);
  EXPECT_EQ(split.calibration.size(), 3u);
  EXPECT_EQ(split.held_out.size(), 19u);
  EXPECT_EQ(split.n_calibration_units, 3);
  EXPECT_EQ(split.n_held_out_units, 19);
  EXPECT_GT(split.calibration[1].n_answer(), 0);  // which every change is looked at in
  std::set<int64_t> units;
  std::set<std::vector<int32_t>> answers;
  for (const auto* windows : {&split.calibration, &split.held_out})
    for (const TuneWindow& window : *windows) {
      EXPECT_TRUE(units.insert(window.unit).second);
      EXPECT_EQ(window.tokens.size(), 49u);
      if (window.n_answer() == 0) continue;
      answers.insert({window.tokens.begin() + window.n_prompt, window.tokens.end()});
      // Its text is that of the window before it.
      const int32_t own = window.tokens[0];
      EXPECT_TRUE(std::any_of(windows->begin(), windows->end(), [&](const TuneWindow& other) {
        return other.n_answer() == 0 && other.tokens[0] == own;
      }));
    }
  EXPECT_EQ(answers.size(), 3u);
}

TEST(AddNeedles, SeedsDecideAndShortContextsAreRefused) {
  const WordTokenizer tokenizer;
  const auto needle = [&](uint32_t seed) {
    TextSplit split = split_of(1, 2);
    add_needles(tokenizer, seed, split);
    return split.held_out[1].tokens;
  };
  EXPECT_EQ(needle(1), needle(1));
  EXPECT_NE(needle(1), needle(2));
  TextSplit split = split_of(1, 2);
  for (auto* windows : {&split.calibration, &split.held_out})
    for (TuneWindow& window : *windows) window.tokens.resize(9);
  try {
    add_needles(tokenizer, 1, split);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.hint().find("--no-needles"), std::string::npos);
  }
}

class NeedleLoss : public testing::Test {
 protected:
  NeedleLoss() {
    GoldenModel golden = golden_model("models/llama");
    golden.context = 64;
    model = std::make_unique<Model>(load(golden, {"cpu", DType::kF32}));
    for (int i = 0; i < 44; ++i) window.tokens.push_back(i * i % 7);
    window.n_prompt = 44;
    // The answer is what the exact model says.
    for (int i = 0; i < 5; ++i) {
      KvCache cache = model->make_cache(1, std::ssize(window.tokens));
      const std::vector<float> logits = logits_of(*model, window.tokens, cache);
      const auto last = logits.end() - model->spec().vocab;
      window.tokens.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
    }
  }
  Needles needles_of(const Plan& plan) {
    Loss loss;
    loss.add(WindowReference(*model, window, WindowReference::Purpose::kPlans).loss_of(plan, 0));
    return loss.needles;
  }
  std::unique_ptr<Model> model;
  TuneWindow window;
};

TEST_F(NeedleLoss, TheExactModelFindsWhatItSays) {
  const Needles found = needles_of({});
  EXPECT_EQ(found.n, 1);
  EXPECT_EQ(found.by_dense, 1);
  EXPECT_EQ(found.found, 1);
  window.tokens[46] = (window.tokens[46] + 1) % 64;
  EXPECT_EQ(needles_of({}).by_dense, 0);
  EXPECT_EQ(needles_of({}).lost(), 0);
}

// Found by the plan when the plan, reading the same tokens, says the same.
TEST_F(NeedleLoss, APlanFindsTheAnswerThatItWouldGive) {
  HeadOptions options;
  options.mode = AttentionMode::kKeys;
  int64_t n_lost = 0;
  for (const int64_t width : {1, 2, 4, 8, 16, 32}) {
    const Plan plan{
        .attention = plan_of_all(options, width, {.kind = HeadKind::kWindow}, model->plan_shape())};
    const auto n = static_cast<int64_t>(window.tokens.size()) - 1;
    KvCache cache = model->make_cache(1, n, plan.attention);
    const std::vector<float> logits =
        logits_of(*model, {window.tokens.begin(), window.tokens.end() - 1}, cache);
    bool finds = true;
    for (int64_t i = window.n_prompt - 1; i < n; ++i) {
      const auto row = logits.begin() + i * model->spec().vocab;
      finds = finds && std::max_element(row, row + model->spec().vocab) - row ==
                           window.tokens[static_cast<size_t>(i) + 1];
    }
    EXPECT_EQ(needles_of(plan).found, finds) << width;
    n_lost += !finds;
  }
  EXPECT_GT(n_lost, 0);
}

TEST(NeedleContract, APlanThatLosesOneDoesNotHold) {
  const Contract contract{.max_kl = 1};
  Loss loss;
  loss.needles = {.n = 3, .by_dense = 2, .found = 2};
  EXPECT_TRUE(contract.holds(loss));
  loss.needles.found = 1;
  EXPECT_FALSE(contract.holds(loss));
  EXPECT_GT(contract.excess(loss, 0), 1);
}

TEST_F(NeedleLoss, TuneMixesThemIn) {
  const WordTokenizer tokenizer;
  std::string content;
  for (int i = 0; i < 600; ++i) {
    content += " w" + std::to_string(i * i % 23);
    if (i % 60 == 59) content += "|";
  }
  const TempDir dir;
  TextStream text(dir.write("text", content), tokenizer, "|");
  TuneOptions options;
  options.contract.max_kl = 1;
  options.objective = PlanObjective::kMemory;
  options.split = {.context = 48, .n_calibration = 2, .n_held_out = 3, .seed = 1};
  options.heads.mode = AttentionMode::kKeys;
  options.heads.windows = {8};
  options.heads.taus = {0.5};
  options.bench_rounds = 1;
  Measurements measurements({}, {});
  const TuneResult result =
      tune(*model, text, options, measurements, [](double, const std::string&) {});
  EXPECT_EQ(result.text.calibration.size(), 3u);
  EXPECT_EQ(result.text.held_out.size(), 4u);
  for (const TuneStep& step : result.steps) EXPECT_EQ(step.loss.needles.n, 1);
  EXPECT_EQ(result.held_out.needles.lost(), 0);
}

}  // namespace
}  // namespace sluice::impl::test
