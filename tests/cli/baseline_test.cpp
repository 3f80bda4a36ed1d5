// Baselines in sluice eval: figures, files, and what is refused. docs/baselines.md.

#include "cli/eval_fixture.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

class EvalBaseline : public EvalFixture {};

TEST_F(EvalBaseline, KeepingEverythingIsDense) {
  eval({"--attention", "baseline:window,baseline:quest,baseline:pooled,baseline:oracle", "--keep",
        "1", "--quiet"});
  const json runs = read_results(results_).at("runs");
  ASSERT_EQ(runs.size(), 4u);
  for (const json& run : runs) {
    // Round-off, as in attention_test.cpp.
    EXPECT_LT(run.at("metrics").at("kl_max").get<double>(), 1e-6) << run.at("settings");
    // Quest reads to choose.
    EXPECT_EQ(run.at("metrics").at("keys_read_fraction") == 1,
              run.at("settings").at("attention") != "baseline:quest");
  }
}

// Windows of 40 tokens. The query at t reads the last 10 keys and up to 4 first ones.
TEST_F(EvalBaseline, KeysReadAreThoseOfAllQueries) {
  const RunResult shown =
      eval({"--attention", "baseline:window", "--keep", "0.25", "-c", "40", "--windows", "2"});
  expect_all_in({"Keys read", "4 first keys and the last 10"}, shown);
  double read = 0, all = 0;
  for (int t = 0; t < 40; ++t) {
    read += std::min(t + 1, 10) + std::clamp(t + 1 - 10, 0, 4);
    all += t + 1;
  }
  const json results = read_results(results_);
  EXPECT_NEAR(results.at("metrics").at("keys_read_fraction").get<double>(), read / all, 1e-12);
  EXPECT_GT(results.at("metrics").at("kl_mean").get<double>(), 0);
  EXPECT_EQ(results.at("settings").at("attention"), "baseline:window");
  EXPECT_EQ(results.at("settings").at("keep"), 0.25);
}

TEST_F(EvalBaseline, HasARowForEveryShareAndForOtherModes) {
  const RunResult shown =
      eval({"--attention", "baseline:quest,keys", "--keep", "0.5,0.25,0.50", "--quiet"});
  expect_all_in({"keep", "baseline:quest", "0.25", "cascade-cover"}, shown);
  const json runs = read_results(results_).at("runs");
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].at("settings").at("keep"), 0.5);
  EXPECT_EQ(runs[1].at("settings").at("keep"), 0.25);
  EXPECT_EQ(runs[2].at("settings").at("attention"), "keys");
}

class RefusesBaseline : public testing::TestWithParam<Refusal> {};
TEST_P(RefusesBaseline, WithOneLineAndAHint) { expect_refused(GetParam()); }

Refusal bad_baseline(std::string name, const Args& more, std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build = [more](ModelFolder& folder) { return eval_of(folder, more); },
          .fragments = std::move(fragments),
          .code = 2};
}

std::vector<Refusal> baseline_refusals() {
  const Args quest{"--attention", "baseline:quest"};
  const auto with = [&](const Args& more) { return joined(quest, more); };
  std::vector<Refusal> all = {
      bad_baseline("UnknownBaseline", {"--attention", "baseline:best", "--keep", "0.1"},
                   {"baseline:best", "baseline:window"}),
      bad_baseline("BaselineOfNoName", {"--attention", "baseline", "--keep", "0.1"},
                   {"baseline given", "baseline:window"}),
      bad_baseline("NoKeep", quest, {"baseline:quest", "needs --keep"}),
      bad_baseline("KeepNothing", with({"--keep", "0"}), {"--keep", "0 given", "more than 0"}),
      bad_baseline("KeepTooMuch", with({"--keep", "0.5,1.5"}), {"--keep", "1.5 given", "up to 1"}),
      bad_baseline("KeepNan", with({"--keep", "nan"}), {"--keep", "nan given"}),
      bad_baseline("KeepOfDense", {"--keep", "0.5"}, {"--keep has no effect on dense"}),
      bad_baseline("KeepOfRefine", {"--attention", "refine", "--keep", "0.5"},
                   {"--keep has an effect on --attention baseline alone"}),
      bad_baseline("DeltaOfABaseline", with({"--keep", "0.5", "--delta", "0.1"}),
                   {"--delta has an effect on --attention refine alone"}),
      bad_baseline("OnTheReference", with({"--keep", "0.5", "--device", "reference"}),
                   {"baseline:quest is not among the reference's", "--device"}),
      bad_baseline("Predict", with({"--keep", "0.5", "--predict", "4"}),
                   {"does not generate", "--predict"}),
      {.name = "Encoder",
       .build =
           [half = with({"--keep", "0.5"})](ModelFolder& folder) { return eval_of(folder, half); },
       .fragments = {"encoder", "causal"},
       .golden = "bert"}};
  for (const auto& [name, command] : {std::pair{"InGenerate", "generate"}, {"InBench", "bench"}})
    all.push_back({.name = name,
                   .build =
                       [command, quest](ModelFolder& folder) {
                         return joined({command, "-m", folder.path()}, quest);
                       },
                   .fragments = {"baseline:quest", "sluice eval and needle alone"},
                   .code = 2});
  all.push_back({.name = "InTune",
                 .build =
                     [quest](ModelFolder& folder) {
                       return joined({"tune", "-m", folder.path(), "-f", "text.txt"}, quest);
                     },
                 .fragments = {"baseline:quest not in"},
                 .code = 2});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Refuses, RefusesBaseline, testing::ValuesIn(baseline_refusals()), name_of);

}  // namespace
}  // namespace sluice::impl
