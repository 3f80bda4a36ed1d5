// --cache through the commands.

#include "cli/eval_fixture.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

class CacheOption : public EvalFixture {};

TEST_F(CacheOption, EvalComparesInt8WithDense) {
  for (const char* device : {"cpu", "reference"}) {
    const RunResult result = eval({"--cache", "int8", "--device", device});
    expect_all_in({"KL(dense‖dense int8)", "Cache bytes", "dense, cache int8"}, result);
    const json found = read_results(results_);
    EXPECT_EQ(found.at("settings").at("attention"), "dense");
    EXPECT_EQ(found.at("settings").at("cache"), "int8");
    EXPECT_EQ(found.at("runs")[0].at("plan").at("layers")[0].at("cache"), "int8");
    const json& metrics = found.at("metrics");
    EXPECT_GT(metrics.at("kl_mean").get<double>(), 0) << device;
    // Rows are rounded to 1/254 of their largest: some 1e-2 of a logit, the divergence is of its
    // square.
    EXPECT_LT(metrics.at("kl_mean").get<double>(), 1e-4) << device;
    EXPECT_NEAR(metrics.at("ppl_ratio").get<double>(), 1, 1e-2) << device;
    const json& cache = found.at("cache");
    EXPECT_LT(cache.at("exact_bytes").get<int64_t>(), cache.at("dense_bytes").get<int64_t>() / 2);
  }
}

TEST_F(CacheOption, ExactIsTheDefault) {
  eval({"--cache", "exact"});
  const json found = read_results(results_);
  EXPECT_FALSE(found.at("settings").contains("cache"));
  EXPECT_FALSE(found.at("metrics").contains("kl_mean"));
}

TEST_F(CacheOption, RefineHasItToo) {
  expect_all_in({"refine int8", "cache int8"},
                eval({"--attention", "refine", "--segment", "16", "--window", "0", "--sinks", "0",
                      "--cache", "int8"}));
}

TEST_F(CacheOption, GenerateAndBenchTakeIt) {
  const RunResult result = run_ok({"generate", "-m", folder_.path(), "-p", "hello", "-n", "8",
                                   "--ignore-eos", "--cache", "int8", "--json", results_});
  EXPECT_NE(result.err.find("attention dense, cache int8"), std::string::npos) << result;
  const json cache = read_results(results_).at("runs").at(0).at("cache");
  EXPECT_LT(cache.at("exact_bytes").get<int64_t>(), cache.at("dense_bytes").get<int64_t>() / 2);
  expect_all_in({"cache int8"}, run_ok({"bench", "-m", folder_.path(), "-c", "16", "-n", "2",
                                        "--repeat", "2", "--cache", "int8"}));
}

TEST_F(CacheOption, AnAuditReplaysTheExactModel) {
  const Args generate{"generate", "-m",           folder_.path(), "-p",   "hello",   "-n",
                      "8",        "--ignore-eos", "--cache",      "int8", "--audit", "2"};
  const RunResult result = run_ok(generate);
  EXPECT_NE(result.err.find("measured KL"), std::string::npos) << result;
  const RunResult refused = run_program(joined(generate, {"--audit-mode", "step"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("as they are kept"), std::string::npos) << refused;
}

TEST_F(CacheOption, InspectShowsItsMemoryAndAPlanThatHasIt) {
  expect_all_in({"cache int8", "with --cache int8"}, run_ok({"inspect", "-m", folder_.path()}));
  const json plan = {
      {"format", "sluice-plan"},
      {"version", 1},
      {"model",
       {{"sha256", std::string(64, 'a')}, {"family", "gpt2"}, {"n_layers", 1}, {"n_kv_heads", 1}}},
      {"context", 64},
      {"layers", {{{"layer", 0}, {"cache", "int8"}}}}};
  expect_all_in({"dense, cache int8"}, run_ok({"inspect", folder_.write("p.json", plan.dump())}));
}

TEST_F(CacheOption, HasNoEffectOnOtherModes) {
  for (const char* mode : {"keys", "copy"}) {
    const RunResult result = run_program(
        {"eval", "-m", folder_.path(), "-f", text_, "--attention", mode, "--cache", "int8"});
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("--cache has an effect on --attention dense or refine alone"),
              std::string::npos)
        << result;
  }
}

}  // namespace
}  // namespace sluice::impl
