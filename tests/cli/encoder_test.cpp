// sluice eval of encoders: masked tokens, and rows layer by layer.

#include "cli/encoder.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

class EncoderEval : public testing::TestWithParam<const char*> {
 protected:
  json eval(const Args& more) {
    printed_ = run_ok(joined(
        {"eval", "-m", encoder_.folder.path(), "-f", encoder_.text, "--json", encoder_.results},
        more));
    return json::parse(read_bytes(encoder_.results));
  }

  const Encoder encoder_{GetParam()};
  RunResult printed_;
};

TEST_P(EncoderEval, WithoutAModeIsOfTheDenseModel) {
  const json results = eval({"--mask-share", "0.25", "--mask-seed", "3"});
  EXPECT_EQ(results.at("settings").at("mask_share"), 0.25);
  EXPECT_EQ(results.at("settings").at("mask_seed"), 3);
  const json& metrics = results.at("metrics");
  EXPECT_EQ(metrics.at("kl_max"), 0);
  EXPECT_EQ(metrics.at("accuracy"), metrics.at("accuracy_base"));
  EXPECT_EQ(metrics.at("hidden_relative_error"), 0);
  EXPECT_NE(printed_.out.find("masked tokens in"), std::string::npos) << printed_;
  EXPECT_NE(printed_.out.find("Accuracy"), std::string::npos) << printed_;
}

TEST_P(EncoderEval, ComparesEveryModeOnTheSameMasks) {
  const json results = eval({"--attention", "paper,copy,keys,refine", "--tau", "0.5"});
  ASSERT_EQ(results.at("runs").size(), 4u);
  for (const json& run : results.at("runs")) {
    EXPECT_EQ(run.at("metrics").at("ppl_base"), results.at("runs")[0].at("metrics").at("ppl_base"));
    EXPECT_EQ(run.at("row_errors").size(), results.at("model").at("n_layers").get<size_t>());
    EXPECT_FALSE(run.contains("token_kl"));
  }
  EXPECT_NE(printed_.out.find("row cosine"), std::string::npos) << printed_;
  EXPECT_EQ(printed_.err.find("still to come"), std::string::npos) << printed_;
}

class EncoderTune : public EncoderEval {
 protected:
  Args tune(const Args& more) {
    return joined({"tune", "-m", encoder_.folder.path(), "-f", encoder_.text, "-o", plan_, "-c",
                   "40", "--windows", "2", "--held-out", "2", "--quiet"},
                  more);
  }
  json plan() const { return json::parse(read_bytes(plan_)); }

  const TempDir out_;
  const std::string plan_ = (out_.path() / "plan.json").string();
};

TEST_P(EncoderTune, KeepsAContractOnMaskedTokens) {
  // All means: everything may be lost, so every head takes what reads least.
  run_ok(tune({"--max-kl", "1000", "--objective", "reads", "--segment", "16", "--page", "4",
               "--delta", "0.1,inf"}));
  EXPECT_EQ(plan().at("layers")[0].at("mode"), "refine");
  const json results = eval({"--plan", plan_, "-c", "40"});
  EXPECT_LT(results.at("metrics").at("keys_read_fraction"), 1.0);
  // Nothing may be lost: deltas of 0 open every cluster, and save nothing.
  const RunResult dense = run_ok(tune(
      {"--max-kl", "0", "--objective", "reads", "--segment", "16", "--page", "4", "--delta", "0"}));
  EXPECT_NE(dense.out.find("dense: no choice saves anything"), std::string::npos) << dense;
}

TEST_P(EncoderTune, KnowsKeysToo) {
  run_ok(tune({"--max-kl", "1000", "--attention", "keys", "--tau", "0.5", "--far", "centroid"}));
  EXPECT_TRUE(plan().contains("layers"));
}

TEST_P(EncoderTune, RefusesWhatAnEncoderDoesNotDo) {
  const Args accept = {"--max-kl", "0.1"};
  for (const char* objective : {"decode", "decode-reads"})
    expect_complaint(run_program(tune(joined(accept, {"--objective", objective}))), 1,
                     {"is an encoder", std::string("objective ") + objective, "prefill or reads"});
  expect_complaint(
      run_program(tune(joined(accept, {"--attention", "keys", "--objective", "memory"}))), 1,
      {"is an encoder", "objective memory"});
  expect_complaint(run_program(tune(joined(accept, {"--window", "64"}))), 1,
                   {"is an encoder and has no window"});
}

INSTANTIATE_TEST_SUITE_P(Golden, EncoderTune, testing::Values("bert", "esm"));
INSTANTIATE_TEST_SUITE_P(Golden, EncoderEval, testing::Values("bert", "esm"));

}  // namespace
}  // namespace sluice::impl
