// Gated and graded linear layers through the commands: figures, files, and what is refused.

#include "cli/refusals.h"

namespace sluice {
namespace {

using nlohmann::json;
using namespace test;

class LinearCommand : public testing::Test {
 protected:
  LinearCommand() {
    run_ok({"calibrate", "-m", folder.path(), "-f", folder.write("other.txt", letter_text(400)),
            "-o", bases, "--rank", "4", "-c", "32", "--quiet"});
  }
  Args eval(Args more) const { return eval_of(folder, std::move(more)); }
  json results(Args more) const {
    more.insert(more.end(), {"--quiet", "--json", file});
    run_ok(eval(std::move(more)));
    return json::parse(read_bytes(file));
  }

  const ModelFolder folder;
  const TempDir out;
  const std::string bases = (out.path() / "b.safetensors").string(),
                    file = (out.path() / "r.json").string();
};

TEST_F(LinearCommand, EvalTellsWhatEveryLayerAndInputDid) {
  const json r =
      results({"--linear", "gsi", "--bases", bases, "--epsilon", "0,1", "--rank", "3,4"});
  ASSERT_EQ(r.at("runs").size(), 4u);
  EXPECT_FALSE(r.at("bases").at("same_text"));
  EXPECT_GT(r.at("settings").at("prepared_linear_bytes"), 0);
  for (const json& run : r.at("runs")) {
    const bool open = run.at("settings").at("epsilon") == 1;
    EXPECT_EQ(run.at("linear").size(), 4 * r.at("model").at("n_layers").get<size_t>());
    EXPECT_EQ(run.at("plan").at("linear").size(), run.at("linear").size());
    for (const json& group : run.at("linear")) {
      EXPECT_EQ(group.at("rank"), run.at("settings").at("rank"));
      EXPECT_EQ(group.at("fast_path_fraction") == 1.0, open);
      EXPECT_LE(group.at("residual_median"), group.at("residual_p90"));
    }
    const json& metrics = run.at("metrics");
    if (open) {
      EXPECT_EQ(metrics.at("fast_path_fraction"), 1);
      EXPECT_LT(metrics.at("weight_bytes_fraction"), 1);
      EXPECT_GT(metrics.at("kl_mean"), 1e-4);
    } else {
      // Exact but for round-off, and V is read on top.
      EXPECT_LT(metrics.at("kl_max"), 1e-6);
      EXPECT_GT(metrics.at("weight_bytes_fraction"), 1);
    }
  }
}

TEST_F(LinearCommand, BothAxesAreComparedInOneRun) {
  const json r = results({"--linear", "dense,graded", "--epsilon", "0.3", "--attention", "keys",
                          "--tau", "0.3,0.9", "--window", "8", "--block", "8"});
  ASSERT_EQ(r.at("runs").size(), 4u);
  EXPECT_EQ(r.at("runs")[0].at("settings").at("linear"), "dense");
  EXPECT_EQ(r.at("runs")[0].at("metrics").at("weight_bytes_fraction"), 1);
  EXPECT_EQ(r.at("runs")[1].at("settings").at("linear"), "graded");
  EXPECT_EQ(r.at("runs")[1].at("settings").at("attention"), "keys");
  EXPECT_LT(r.at("runs")[1].at("metrics").at("weight_bytes_fraction"), 1);
  EXPECT_EQ(r.at("runs")[1].at("metrics").at("fast_path_fraction"), nullptr);
  EXPECT_LT(r.at("runs")[1].at("linear")[0].at("kept_fraction"), 1);
}

TEST_F(LinearCommand, TheSameTextIsSaid) {
  const RunResult run = run_ok({"eval", "-m", folder.path(), "-f", folder.file("other.txt"),
                                "--linear", "gsi", "--bases", bases, "--adaptive", "2", "--quiet"});
  EXPECT_NE(run.err.find("calibrated on this very text"), std::string::npos) << run;
  EXPECT_NE(run.out.find("mlp_inner"), std::string::npos) << run;  // a row per layer and input
}

TEST_F(LinearCommand, GenerateAndBenchTakeTheSameFlags) {
  const Args flags{"--linear", "gsi", "--bases", bases, "--epsilon", "1"};
  Args generate = generate_of(folder, {"-p", "AB"}),
       bench{"bench", "-m", folder.path(), "-c", "8", "-n", "2", "--repeat", "1"};
  for (Args* args : {&generate, &bench}) args->insert(args->end(), flags.begin(), flags.end());
  EXPECT_NE(run_ok(generate).err.find("100.0% of tokens fast"), std::string::npos);
  EXPECT_NE(run_ok(bench).out.find("gsi, rank 4, epsilon 1"), std::string::npos);
}

TEST_F(LinearCommand, RefusesInOneLine) {
  const auto refused = [&](const Args& more, int code, const std::vector<std::string>& words) {
    expect_complaint(run_program(eval(more)), code, words);
  };
  refused({"--linear", "gsi"}, 2, {"needs bases"});
  refused({"--epsilon", "0.1"}, 2, {"--epsilon has no effect"});
  refused({"--linear", "graded", "--rank", "4"}, 2, {"--rank has an effect on --linear gsi"});
  refused({"--linear", "graded", "--epsilon", "0"}, 1, {"exact zeros"});
  const Args gsi{"--linear", "gsi", "--bases", bases};
  const auto with = [&](Args more) {
    more.insert(more.begin(), gsi.begin(), gsi.end());
    return more;
  };
  refused(with({"--rank", "0"}), 2, {"--rank"});
  refused(with({"--rank", "5"}), 1, {"rank 5", "has 4"});
  refused(with({"--rank", "9999"}), 1, {"rank 9999", "attention_input"});
  refused(with({"--adaptive", "9999"}), 1, {"9999 more directions"});
  for (const char* epsilon : {"-0.1", "nan", "1.5"})
    refused(with({"--epsilon", epsilon}), 2, {"--epsilon", "0 to 1"});
  const std::string bytes = read_bytes(bases);
  const std::string half = out.write("half.safetensors", bytes.substr(0, bytes.size() / 2));
  refused({"--linear", "gsi", "--bases", half}, 1, {"half.safetensors"});
  const ModelFolder other("opt");
  expect_complaint(run_program(eval_of(other, gsi)), 1, {"b.safetensors", "another model"});
}

}  // namespace
}  // namespace sluice
