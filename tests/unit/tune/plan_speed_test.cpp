// From which length on a plan pays, by times that are made up.

#include "tune/plan_speed.h"

#include <gtest/gtest.h>

namespace sluice::impl::test {
namespace {

struct Speeds {
  int64_t n_tokens;
  double prefill, decode;
};

PlanSpeed judged(const std::vector<Speeds>& lengths, PlanObjective objective) {
  BenchResult bench;
  const auto add = [&](const char* kind, int64_t n_tokens, size_t candidate, double speedup) {
    BenchCase found;
    found.name = kind + std::to_string(n_tokens);
    found.n_tokens = n_tokens;
    found.candidate = candidate;
    found.speedup = {speedup, speedup, speedup};
    bench.cases.push_back(std::move(found));
  };
  for (const Speeds& length : lengths) {
    add("pp", length.n_tokens, 0, 1);
    add("pp", length.n_tokens, 1, length.prefill);
    add("tg@", length.n_tokens, 0, 1);
    add("tg@", length.n_tokens, 1, length.decode);
  }
  return judge_speed(std::move(bench), objective);
}

TEST(PlanSpeed, ItPaysFromTheLengthFromWhichAllLongerOnesGain) {
  const PlanSpeed speed =
      judged({{128, 1.5, 0.9}, {256, 0.9, 1.0}, {512, 1.1, 0.99}, {1024, 1.3, 1.2}},
             PlanObjective::kPrefill);
  EXPECT_TRUE(speed.pays);
  EXPECT_EQ(speed.prefill_from, 512);
  EXPECT_EQ(speed.decode_from, 256);  // where it is not slower
}

TEST(PlanSpeed, AGainThatTheLongestLengthDoesNotHaveIsNone) {
  const PlanSpeed speed = judged({{128, 1.5, 1.5}, {256, 1.01, 1.5}}, PlanObjective::kPrefill);
  EXPECT_FALSE(speed.pays);
  EXPECT_EQ(speed.prefill_from, std::nullopt);
  EXPECT_EQ(speed.decode_from, 128);
}

TEST(PlanSpeed, TheObjectiveSaysWhichGainIsAskedFor) {
  const std::vector<Speeds> slow_to_read = {{128, 0.5, 1.3}}, slow_to_write = {{128, 1.3, 0.5}};
  EXPECT_FALSE(judged(slow_to_read, PlanObjective::kPrefill).pays);
  EXPECT_TRUE(judged(slow_to_read, PlanObjective::kDecode).pays);
  EXPECT_EQ(judged(slow_to_read, PlanObjective::kDecode).prefill_from, std::nullopt);
  EXPECT_TRUE(judged(slow_to_write, PlanObjective::kPrefill).pays);
  EXPECT_FALSE(judged(slow_to_write, PlanObjective::kDecode).pays);
  EXPECT_TRUE(judged({{128, 0.5, 0.5}}, PlanObjective::kMemory).pays);
}

// One round was slower than dense, or other work disturbed the samples.
TEST(PlanSpeed, AGainWithinNoiseIsNone) {
  BenchCase found;
  found.name = "pp512";
  found.n_tokens = 512;
  found.candidate = 1;
  const auto pays = [&](Ratio speedup, std::vector<double> samples) {
    found.speedup = speedup;
    found.samples.clear();
    for (const double ms : samples) found.samples.push_back({.total = ms});
    BenchResult bench;
    bench.cases = {found};
    return judge_speed(std::move(bench), PlanObjective::kPrefill).pays;
  };
  EXPECT_TRUE(pays({1.3, 1.1, 1.5}, {10, 10, 10.1, 10.2, 14}));
  EXPECT_FALSE(pays({1.3, 0.9, 1.5}, {10, 10, 10.1, 10.2, 14}));
  EXPECT_FALSE(pays({1.3, 1.1, 1.5}, {10, 10, 11.5, 12, 14}));
}

TEST(PlanSpeed, LengthsArePowersOfTwoUpToTheContextWithRoomToDecode) {
  EXPECT_EQ(lengths_to_time(1024, 4096), (std::vector<int64_t>{128, 256, 512, 1024}));
  EXPECT_EQ(lengths_to_time(1000, 4096), (std::vector<int64_t>{128, 256, 512, 1000}));
  EXPECT_EQ(lengths_to_time(1024, 1024), (std::vector<int64_t>{128, 256, 512, 896, 1024}));
  EXPECT_EQ(lengths_to_time(64, 64), (std::vector<int64_t>{64}));
}

TEST(PlanSpeed, TokensGoRoundWhereWindowsEnd) {
  const std::vector<TuneWindow> windows = {{.tokens = {1, 2, 3}}, {.tokens = {4, 5}}};
  EXPECT_EQ(tokens_of(windows, 5), (std::vector<int32_t>{1, 2, 4, 1, 2}));
}

}  // namespace
}  // namespace sluice::impl::test
