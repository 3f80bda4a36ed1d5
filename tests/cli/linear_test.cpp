// Gated and graded linear layers through the commands: figures, files, and what is refused.

#include "cli/refusals.h"

namespace sluice::impl {
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
  json results(Args more) const { return results_of(eval(std::move(more))); }
  json results_of(Args args) const {
    args.insert(args.end(), {"--quiet", "--json", file});
    run_ok(args);
    return read_results(file);
  }
  Args gsi(Args args, const Args& more = {}) const {
    args.insert(args.end(), {"--linear", "gsi", "--bases", bases});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  Args bench(const Args& more = {}) const {
    Args args{"bench", "-m", folder.path(), "-c", "8", "-n", "2", "--repeat", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  const ModelFolder folder;
  const TempDir out;
  const std::string bases = (out.path() / "b.safetensors").string(),
                    file = (out.path() / "r.json").string();
};

// What an input's matrix has: rows of 32 numbers, inner ones of 128.
struct Matrix {
  double n_in, n_out;
};
Matrix matrix_of(const std::string& input) {
  if (input == "attention_input") return {32, 96};
  if (input == "attention_output") return {32, 32};
  return input == "mlp_input" ? Matrix{32, 128} : Matrix{128, 32};
}
// Weights that a token reads by the image alone, of a whole block.
double open_share(double rank) {
  double read = 0, all = 0;
  for (const char* input : {"attention_input", "attention_output", "mlp_input", "mlp_inner"}) {
    const auto [n_in, n_out] = matrix_of(input);
    read += rank * (n_in + n_out);
    all += n_in * n_out;
  }
  return read / all;
}

TEST_F(LinearCommand, BenchTimesJointAndPlainSelection) {
  run_ok({"calibrate", "-m", folder.path(), "-f", folder.write("other.txt", letter_text(400)), "-o",
          bases, "--rank", "4", "-c", "32", "--selection", "normed", "--quiet"});
  const json r = results_of(
      bench({"--attention", "keys", "--joint", "--bases", bases, "--window", "0", "--block", "4"}));
  std::map<std::string, int> seen;
  for (const json& found : r.at("cases")) {
    const json& settings = found.at("settings");
    ++seen[settings.at("attention") == "dense" ? "dense"
           : settings.contains("joint")        ? "joint"
                                               : "plain"];
    EXPECT_EQ(found.at("parts_ms").size(), 4u);
    if (!settings.contains("joint")) {
      EXPECT_TRUE(found.at("pairs_dropped_fraction").is_null());
    }
  }
  EXPECT_EQ(seen, (std::map<std::string, int>{{"dense", 2}, {"joint", 2}, {"plain", 2}}));
  // The same sets give the same figures.
  const json plain = results({"--attention", "keys", "--tau", "0.5"});
  const json joint = results({"--attention", "keys", "--tau", "0.5", "--joint", "--bases", bases});
  EXPECT_EQ(joint.at("metrics").at("kl_mean"), plain.at("metrics").at("kl_mean"));
  EXPECT_EQ(joint.at("metrics").at("clusters_fraction"),
            plain.at("metrics").at("clusters_fraction"));
}

TEST_F(LinearCommand, JointSelectionNeedsItsBases) {
  expect_complaint(run_program(eval({"--attention", "keys", "--joint"})), 2,
                   {"--joint needs bases"});
  expect_complaint(run_program(eval({"--joint", "--bases", bases})), 2,
                   {"--joint", "dense attention"});
  expect_complaint(run_program(eval({"--attention", "keys", "--joint", "--bases", bases})), 1,
                   {"no basis for its joint selection", "--selection normed"});
}

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
      // Basis and image; or the whole matrix, and the basis of those tokens that were tried.
      const auto [n_in, n_out] = matrix_of(group.at("input"));
      const double rank = group.at("rank"), n_tokens = group.at("n_tokens");
      const double tried = (n_tokens - group.at("n_bypassed").get<double>()) / n_tokens;
      EXPECT_NEAR(group.at("bytes_fraction"),
                  open ? rank * (n_in + n_out) / (n_in * n_out) : 1 + tried * rank / n_out, 1e-12)
          << group;
      if (open) {
        EXPECT_EQ(tried, 1);
      }
    }
    const json& metrics = run.at("metrics");
    if (open) {
      EXPECT_EQ(metrics.at("fast_path_fraction"), 1);
      EXPECT_NEAR(metrics.at("weight_bytes_fraction"), open_share(run.at("settings").at("rank")),
                  1e-12);
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

TEST_F(LinearCommand, ChoicesGivenTwiceRunOnce) {
  const json r =
      results({"--linear", "gsi,gsi", "--bases", bases, "--rank", "3,4,3", "--epsilon", "0.5,0.5",
               "--attention", "keys,keys", "--window", "8", "--block", "8", "--tau", "0.3,0.3"});
  EXPECT_EQ(r.at("runs").size(), 2u);
}

TEST_F(LinearCommand, TheSameTextIsSaid) {
  const RunResult run = run_ok({"eval", "-m", folder.path(), "-f", folder.file("other.txt"),
                                "--linear", "gsi", "--bases", bases, "--adaptive", "2", "--quiet"});
  EXPECT_NE(run.err.find("calibrated on this very text"), std::string::npos) << run;
  EXPECT_NE(run.out.find("mlp_inner"), std::string::npos) << run;  // a row per layer and input
  EXPECT_NE(run.out.find("of the tokens tried"), std::string::npos) << run;
  EXPECT_NE(run.out.find("90% additions\n"), std::string::npos) << run;

  const std::string prompt = folder.write("other.txt", letter_text(20));
  run_ok({"calibrate", "-m", folder.path(), "-f", prompt, "-o", bases, "--rank", "4", "-c", "32",
          "--quiet"});
  EXPECT_NE(run_ok(gsi(generate_of(folder, {"-f", prompt}))).err.find("on this very text"),
            std::string::npos);
}

TEST_F(LinearCommand, GenerateTellsWhatTheBasesDid) {
  const RunResult run = run_ok(gsi(generate_of(folder, {"-p", "AB"}), {"--epsilon", "1"}));
  EXPECT_NE(run.err.find("100.0% of tokens fast"), std::string::npos) << run;
  EXPECT_NE(run.err.find("of the blocks' linear weights read, counted token by token"),
            std::string::npos)
      << run;
  const json r = results_of(gsi(generate_of(folder, {"-p", "AB"}), {"--epsilon", "1"}));
  EXPECT_EQ(r.at("runs")[0].at("metrics").at("fast_path_fraction"), 1);
  EXPECT_NEAR(r.at("runs")[0].at("metrics").at("weight_bytes_fraction"), open_share(4), 1e-12);
  EXPECT_EQ(r.at("bases").at("path"), bases);
  EXPECT_EQ(r.at("bases").at("text").at("path"), folder.file("other.txt"));
  EXPECT_TRUE(r.at("bases").at("same_text").is_null());  // a prompt is no file
  const json dense = results_of(generate_of(folder, {"-p", "AB"}));
  EXPECT_FALSE(dense.contains("bases"));
  EXPECT_EQ(dense.at("runs")[0].at("metrics").at("weight_bytes_fraction"), 1);
  expect_complaint(run_program(gsi(generate_of(folder, {"-p", "AB"}), {"--json", bases})), 2,
                   {"b.safetensors is in use already"});
}

TEST_F(LinearCommand, EveryCommandDescribesTheBasesAlike) {
  const json of_eval = results(gsi({})).at("bases");
  const json of_bench =
      results_of(gsi(bench({"-f", folder.write("text.txt", letter_text(200))}))).at("bases");
  EXPECT_EQ(of_eval, of_bench);
  EXPECT_EQ(of_eval.at("path"), bases);
  EXPECT_EQ(of_eval.at("same_text"), false);
}

TEST_F(LinearCommand, BenchTellsWhatDecodingReads) {
  const RunResult run = run_ok(gsi(bench(), {"--epsilon", "1"}));
  EXPECT_NE(run.out.find("gsi, rank 4, epsilon 1"), std::string::npos) << run;
  EXPECT_NE(run.err.find("the tokens are random, and activations of such mean little"),
            std::string::npos)
      << run;
  const json r = results_of(gsi(bench({"--attention", "keys", "--window", "8", "--block", "8"}),
                                {"--linear", "dense", "--epsilon", "1"}));
  ASSERT_EQ(r.at("cases").size(), 6u);
  for (const json& found : r.at("cases")) {
    const bool linear = found.at("linear") == "gsi", decode = found.at("name") == "tg@8";
    EXPECT_EQ(found.at("fast_path_fraction"), linear ? json(1.0) : json());
    ASSERT_EQ(found.at("weight_bytes_fraction").is_null(), !linear || !decode);
    if (linear && decode) {
      EXPECT_NEAR(found.at("weight_bytes_fraction"), open_share(4), 1e-12);
    }
  }
  EXPECT_EQ(r.at("cases")[0].at("mode"), "dense");
  EXPECT_EQ(r.at("cases")[1].at("mode"), "keys");  // with gsi, then without
  const json alone = results_of(gsi(bench()));
  EXPECT_EQ(alone.at("cases")[1].at("mode"), "gsi");
  EXPECT_EQ(alone.at("cases")[1].at("linear"), "gsi");
}

TEST_F(LinearCommand, RefusesInOneLine) {
  const auto refused = [&](const Args& more, int code, const std::vector<std::string>& words) {
    expect_complaint(run_program(eval(more)), code, words);
  };
  refused({"--linear", "gsi"}, 2, {"needs bases"});
  refused({"--epsilon", "0.1"}, 2, {"--epsilon has no effect", "--linear gsi or graded"});
  refused({"--bases", bases}, 2, {"--bases has no effect", "give --linear gsi ("});
  refused({"--linear", "graded", "--rank", "4"}, 2, {"--rank has an effect on --linear gsi"});
  refused({"--linear", "graded", "--epsilon", "0"}, 1, {"exact zeros"});
  const auto with = [&](const Args& more) { return gsi({}, more); };
  refused(with({"--rank", "0"}), 2, {"--rank"});
  refused(with({"--rank", "5"}), 1, {"rank 5", "has 4"});
  refused(with({"--rank", "9999"}), 1, {"rank 9999", "attention_input"});
  refused(with({"--adaptive", "9999"}), 1, {"9999 more directions"});
  for (const char* epsilon : {"-0.1", "nan", "1.5"})
    refused(with({"--epsilon", epsilon}), 2, {"--epsilon", "0 to 1"});
  const std::string bytes = read_bytes(bases);
  const std::string half = out.write("half.safetensors", bytes.substr(0, bytes.size() / 2));
  refused({"--linear", "gsi", "--bases", half}, 1,
          {"half.safetensors", "make it again with sluice calibrate"});
  const ModelFolder other("opt");
  expect_complaint(run_program(eval_of(other, gsi({}))), 1, {"b.safetensors", "another model"});
}

}  // namespace
}  // namespace sluice::impl
