// The sampler on small distributions made by hand.

#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"

namespace sluice::impl {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Scores whose softmax at temperature 1 is `probabilities`.
std::vector<float> scores_of(const std::vector<double>& probabilities) {
  std::vector<float> scores;
  for (const double p : probabilities) scores.push_back(static_cast<float>(std::log(p)));
  return scores;
}

int32_t pick(const SamplerOptions& options, std::vector<float> scores,
             const std::vector<int32_t>& seen = {}) {
  return Sampler(options).pick(scores, seen);
}

std::vector<int> counts_of(const SamplerOptions& options, const std::vector<float>& scores,
                           int n_draws = 20000) {
  Sampler sampler(options);
  std::vector<int> counts(scores.size());
  for (int i = 0; i < n_draws; ++i) {
    std::vector<float> copy = scores;
    ++counts[static_cast<size_t>(sampler.pick(copy, {}))];
  }
  return counts;
}

std::set<size_t> drawn(const SamplerOptions& options, const std::vector<float>& scores) {
  const auto counts = counts_of(options, scores, 4000);
  std::set<size_t> ids;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) ids.insert(i);
  return ids;
}

TEST(Sampler, TemperatureZeroTakesTheLargest) {
  EXPECT_EQ(pick({}, {0.1f, -3, 7, 2}), 2);
  EXPECT_EQ(pick({}, {-5, -3, -7}), 1);
  EXPECT_EQ(pick({}, {4}), 0);
}

TEST(Sampler, TiesGoToTheSmallerId) {
  EXPECT_EQ(pick({}, {1, 7, 3, 7, 7}), 1);
  for (uint64_t seed = 0; seed < 50; ++seed)
    EXPECT_EQ(pick({.temperature = 1, .top_k = 1, .seed = seed}, {1, 7, 3, 7, 7}), 1);
}

TEST(Sampler, TopOneIsGreedyAtEveryTemperature) {
  const std::vector<float> scores = {0.3f, 0.1f, 0.35f, 0.2f};
  for (const float temperature : {0.1f, 1.0f, 50.0f})
    EXPECT_EQ(drawn({.temperature = temperature, .top_k = 1}, scores), (std::set<size_t>{2}));
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  const auto scores = scores_of({0.1, 0.3, 0.05, 0.35, 0.2});
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 2}, scores), (std::set<size_t>{1, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 3}, scores), (std::set<size_t>{1, 3, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 99}, scores).size(), 5u);
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 0}, scores).size(), 5u);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  const auto scores = scores_of({0.1, 0.3, 0.05, 0.35, 0.2});
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.01f}, scores), (std::set<size_t>{3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.34f}, scores), (std::set<size_t>{3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.36f}, scores), (std::set<size_t>{1, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.66f}, scores), (std::set<size_t>{1, 3, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 1.0f}, scores).size(), 5u);
}

TEST(Sampler, MinPKeepsThoseNearTheLikeliest) {
  const auto scores = scores_of({0.1, 0.3, 0.05, 0.35, 0.2});
  // Relative to 0.35: 0.29, 0.86, 0.14, 1, 0.57.
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.9f}, scores), (std::set<size_t>{3}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.5f}, scores), (std::set<size_t>{1, 3, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.2f}, scores), (std::set<size_t>{0, 1, 3, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 1.0f}, scores), (std::set<size_t>{3}));
  // The stricter of two cuts decides.
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.36f, .min_p = 0.2f}, scores),
            (std::set<size_t>{1, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 4, .top_p = 0.99f, .min_p = 0.5f}, scores),
            (std::set<size_t>{1, 3, 4}));
}

TEST(Sampler, FrequenciesMatchTheProbabilities) {
  const std::vector<double> p = {0.1, 0.3, 0.05, 0.35, 0.2};
  struct Case {
    SamplerOptions options;
    std::vector<double> expected;
  };
  double total = 0;
  std::vector<double> flattened;  // temperature 2: square roots
  for (const double x : p) total += std::sqrt(x);
  for (const double x : p) flattened.push_back(std::sqrt(x) / total);
  const Case cases[] = {
      {{.temperature = 1, .seed = 11}, p},
      {{.temperature = 2, .seed = 12}, flattened},
      {{.temperature = 1, .top_k = 2, .seed = 13}, {0, 0.3 / 0.65, 0, 0.35 / 0.65, 0}}};
  for (const Case& c : cases) {
    const int n = 20000;
    const auto counts = counts_of(c.options, scores_of(p), n);
    double chi_square = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      if (c.expected[i] == 0) {
        EXPECT_EQ(counts[i], 0);
        continue;
      }
      const double expected = c.expected[i] * n;
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    // Four degrees of freedom: 18.5 is exceeded by one seed in a thousand, and ours is fixed.
    EXPECT_LT(chi_square, 18.5) << "seed " << c.options.seed;
  }
}

TEST(Sampler, TheSameSeedDrawsTheSameTokens) {
  const auto draw = [](uint64_t seed) {
    Sampler sampler({.temperature = 1.5f, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 100; ++i) {
      std::vector<float> scores = {0, 1, 2, 1, 0, 3};
      ids.push_back(sampler.pick(scores, {}));
    }
    return ids;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

TEST(Sampler, RepetitionPenaltyWeakensWhatWasSeenOnce) {
  // Positive scores are divided, negative ones multiplied; a token seen twice counts once.
  EXPECT_EQ(pick({.repetition_penalty = 2}, {3, 4, 1}, {1, 1, 1}), 0);
  EXPECT_EQ(pick({.repetition_penalty = 2}, {1.9f, 4, 1}, {1, 1, 1}), 1);
  EXPECT_EQ(pick({.repetition_penalty = 2}, {-3, -2, -5}, {1}), 0);
  EXPECT_EQ(pick({.repetition_penalty = 0.5f}, {3, 4, 2.5f}, {2}), 2);
  EXPECT_EQ(pick({.repetition_penalty = 1}, {3, 4, 1}, {1}), 1);
}

TEST(Sampler, ExtremeScoresDoNotOverflow) {
  EXPECT_EQ(pick({.temperature = 0.01f}, {1e30f, -1e30f, 0}), 0);
  EXPECT_EQ(pick({.temperature = 1}, {-INFINITY, 5, -INFINITY}), 1);
}

TEST(Sampler, ScoresThatAreNotNumbersAreErrors) {
  EXPECT_THROW(pick({.temperature = 1}, {0, kNaN, 1}), Error);
  EXPECT_THROW(pick({}, {0, INFINITY, 1}), Error);
  EXPECT_THROW(pick({}, {-INFINITY, -INFINITY}), Error);
}

TEST(Sampler, AVeryLowTemperatureTakesTheLikeliest) {
  EXPECT_EQ(pick({.temperature = 1e-38f}, {1, 3, 2}), 1);
}

TEST(Sampler, OptionsOutOfRangeAreErrors) {
  const SamplerOptions wrong[] = {{.temperature = -1},
                                  {.temperature = kNaN},
                                  {.temperature = 1000},
                                  {.temperature = INFINITY},
                                  {.top_k = -1},
                                  {.top_p = 0},
                                  {.top_p = 1.01f},
                                  {.top_p = kNaN},
                                  {.min_p = -0.1f},
                                  {.min_p = 1.1f},
                                  {.min_p = kNaN},
                                  {.repetition_penalty = 0},
                                  {.repetition_penalty = -1},
                                  {.repetition_penalty = kNaN}};
  for (const SamplerOptions& options : wrong) EXPECT_THROW(Sampler{options}, Error);
}

}  // namespace
}  // namespace sluice::impl
