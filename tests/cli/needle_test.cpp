// sluice needle: its table, its file, and what it refuses. The models are random and find nothing.

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

constexpr int kLengthened = 400;

Args needle_of(const ModelFolder& folder, const Args& more = {}, size_t n_bytes = 1000) {
  return joined(
      {"needle", "-m", folder.path(), "-f", folder.write("text.txt", letter_text(n_bytes))}, more);
}

// A model whose context a needle and its question fit.
void lengthen(const ModelFolder& folder) {
  folder.set_config("n_positions", kLengthened);
  folder.repeat_rows("transformer.wpe.weight", kLengthened);
}

TEST(Needle, EveryCaseIsReadDenseAndByEveryChoice) {
  const ModelFolder folder;
  lengthen(folder);
  const std::string file = folder.file("results.json");
  const RunResult result =
      run_ok(needle_of(folder, {"-c", "200,400,200", "--depths", "2", "--cases", "3", "--seed", "9",
                                "--attention", "keys", "--tau", "0,0.9", "--json", file}));
  expect_all_in({"| tokens | depth | seed | dense |", "keys, tau 0 |", "keys, tau 0.9 |",
                 "keys, tau 0.9: found ", " of 12; dense ", "found, ± standard error",
                 "|    400 |     6 | 0.0 ± 0.0% |"},
                result);
  EXPECT_EQ(result.err, "");

  const json results = read_results(file);
  EXPECT_EQ(results.at("command"), "needle");
  EXPECT_EQ(results.at("text").at("n_tokens"), 1001);  // each document has a first token
  EXPECT_EQ(results.at("settings"), json({{"tasks", {"needle"}},
                                          {"context", {200, 400}},
                                          {"depths", 2},
                                          {"cases", 3},
                                          {"seed", 9}}));
  const json& cases = results.at("cases");
  ASSERT_EQ(cases.size(), 12u);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].at("n_tokens"), i < 6 ? 200 : 400);
    EXPECT_EQ(cases[i].at("depth"), i % 6 < 3 ? 0.25 : 0.75);
    EXPECT_EQ(cases[i].at("seed"), 9 + i);
    EXPECT_EQ(cases[i].at("answer").get<std::string>().size(), 5u);
    EXPECT_LT(cases[i].at("dense").at("logp").get<double>(), 0);
    const json& runs = cases[i].at("runs");
    ASSERT_EQ(runs.size(), 2u);
    // Every token is its own cluster at tau 0: the sums of dense attention in another order.
    EXPECT_NEAR(runs[0].at("logp").get<double>(), cases[i].at("dense").at("logp").get<double>(),
                1e-3);
    EXPECT_EQ(runs[0].at("found"), cases[i].at("dense").at("found"));
  }
  const json& summary = results.at("summary");
  EXPECT_EQ(summary.at("n_cases"), 12);
  ASSERT_EQ(summary.at("runs").size(), 2u);
  EXPECT_EQ(summary.at("runs")[1].at("label"), "keys, tau 0.9");
  EXPECT_EQ(summary.at("runs")[1].at("settings").at("tau"), 0.9);
  EXPECT_EQ(summary.at("runs")[0].at("found"), summary.at("dense_found"));
  EXPECT_EQ(summary.at("runs")[0].at("lost"), 0);
}

// docs/baselines.md. Prompts of two lengths, and answers of 5 tokens that are decoded.
TEST(Needle, BaselinesReadPromptsAndAnswers) {
  const ModelFolder folder;
  lengthen(folder);
  const std::string file = folder.file("results.json");
  const std::string all = "baseline:window,baseline:quest,baseline:pooled,baseline:oracle";
  const auto runs_of = [&](const std::string& contexts) {
    const RunResult result =
        run_ok(needle_of(folder, {"-c", contexts, "--depths", "1", "--attention", all, "--keep",
                                  "1,0.2", "--json", file}));
    expect_all_in({"baseline:quest, keep 0.2 |", "baseline:oracle, keep 1: found "}, result);
    return read_results(file);
  };
  const json results = runs_of("200,400");
  const json& summary = results.at("summary").at("runs");
  ASSERT_EQ(summary.size(), 8u);
  EXPECT_EQ(summary[3].at("settings").at("attention"), "baseline:quest");
  EXPECT_EQ(summary[3].at("settings").at("keep"), 0.2);
  for (const json& found : results.at("cases")) {
    ASSERT_EQ(found.at("runs").size(), 8u);
    const double dense = found.at("dense").at("logp").get<double>();
    for (size_t i = 0; i < 8; i += 2) {
      // Reading everything is dense attention, to round-off.
      EXPECT_NEAR(found.at("runs")[i].at("logp").get<double>(), dense, 1e-3) << i;
      if (i < 4) {
        EXPECT_NE(found.at("runs")[i + 1].at("logp"), found.at("runs")[i].at("logp"));
      }
    }
  }
  // A share is of the prompt at hand, not of the run's longest.
  EXPECT_EQ(runs_of("200").at("cases")[0].at("runs"), results.at("cases")[0].at("runs"));
}

TEST(Needle, WithoutAChoiceTellsWhatDenseFinds) {
  const ModelFolder folder;
  lengthen(folder);
  const RunResult result = run_ok(needle_of(folder, {"--depths", "1", "--quiet"}));
  expect_all_in({"|    400 |  0.50 |    0 |", "dense finds 0 of 1 needles\n"}, result);
}

TEST(Needle, WhereDenseFindsNothingNothingIsSaidToBeKept) {
  const ModelFolder folder;
  lengthen(folder);
  const RunResult result =
      run_ok(needle_of(folder, {"--depths", "1", "--attention", "keys", "--tau", "0.9"}));
  EXPECT_TRUE(result.out.ends_with("dense finds 0 of 1 needles: nothing can be lost\n")) << result;
}

TEST(Needle, ManyCasesAreAccuraciesAndAPage) {
  const ModelFolder folder;
  lengthen(folder);
  const std::string page = folder.file("page.html");
  const RunResult result =
      run_ok(needle_of(folder, {"-c", "200", "--depths", "41", "--task", "needle", "--attention",
                                "keys", "--tau", "0", "--html", page, "--quiet"}));
  EXPECT_EQ(result.out.find("| seed |"), std::string::npos) << result;
  expect_all_in({"| needle |    200 |    41 | 0.0 ± 0.0% |"}, result);
  EXPECT_TRUE(result.out.ends_with("dense finds 0 of 41 needles: nothing can be lost\n")) << result;
  EXPECT_NE(read_bytes(page).find("\"cells\":[{"), std::string::npos);
}

class NeedleRefusals : public testing::TestWithParam<Refusal> {};
TEST_P(NeedleRefusals, AreOneLine) { expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Inputs, NeedleRefusals,
    testing::Values(Refusal{.name = "Encoder",
                            .build = [](ModelFolder& folder) { return needle_of(folder); },
                            .fragments = {"bert is an encoder", "causal"},
                            .golden = "bert"},
                    Refusal{.name = "ShortText",
                            .build =
                                [](ModelFolder& folder) {
                                  lengthen(folder);
                                  return needle_of(folder, {"-c", "400"}, 300);
                                },
                            .fragments = {"the text has 301 tokens, 400 are asked for"}},
                    Refusal{.name = "ShortContext",
                            .build =
                                [](ModelFolder& folder) {
                                  return needle_of(folder, {"-c", "40"});
                                },
                            .fragments = {"a context of 40 tokens has no room for a needle"}},
                    Refusal{.name = "LongContext",
                            .build =
                                [](ModelFolder& folder) {
                                  return needle_of(folder, {"-c", "80"});
                                },
                            .fragments = {"80 tokens are more than the model's context of 40"}},
                    Refusal{.name = "Paper",
                            .build =
                                [](ModelFolder& folder) {
                                  lengthen(folder);
                                  return needle_of(folder, {"--attention", "paper"});
                                },
                            .fragments = {"attention paper", "cannot answer"}},
                    Refusal{
                        .name = "BaselineOnTheReference",
                        .build =
                            [](ModelFolder& folder) {
                              return needle_of(folder, {"--attention", "baseline:quest", "--keep",
                                                        "0.1", "--device", "reference"});
                            },
                        .fragments = {"baseline:quest is not among the reference's", "--device"},
                        .code = 2}),
    name_of);

}  // namespace
}  // namespace sluice::impl
