// A contract in, a plan out, and the commands that follow it.

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

class TuneCommand : public testing::Test {
 protected:
  TuneCommand() {
    std::string documents;
    for (int i = 0; i < 12; ++i) documents += letter_text(90) + std::to_string(i) + "<|endoftext|>";
    text = folder.write("documents.txt", documents);
  }
  Args tune(const Args& more) const {
    return joined({"tune", "-m", folder.path(), "-f", text, "-c", "32", "-o", plan, "--window", "8",
                   "--windows", "2", "--held-out", "3", "--no-needles", "--quiet"},
                  joined({"--attention", "keys", "--tau", "0.5"}, more));
  }
  Args tune_refined(const Args& more) const {
    return joined({"tune", "-m", folder.path(), "-f", text, "-c", "32", "-o", plan, "--window", "8",
                   "--windows", "2", "--held-out", "3", "--no-needles", "--quiet"},
                  joined({"--segment", "8", "--page", "4", "--delta", "0.1,inf"}, more));
  }
  json parsed(const std::string& path) const { return read_results(path); }

  const ModelFolder folder;
  const TempDir out;
  std::string text;
  const std::string plan = (out.path() / "plan.json").string(),
                    file = (out.path() / "r.json").string();
};

TEST_F(TuneCommand, ThePlanKeepsItsContractAndOthersFollowIt) {
  const RunResult result =
      run_ok(tune({"--max-kl", "0.5", "--objective", "memory", "--json", file}));
  EXPECT_NE(result.out.find("held out"), std::string::npos) << result;
  const json found = parsed(file), made = parsed(plan);
  EXPECT_EQ(found.at("command"), "tune");
  const json& held_out = found.at("held_out");
  EXPECT_LE(held_out.at("kl_mean").get<double>() + 2 * held_out.at("kl_stderr").get<double>(), 0.5);
  EXPECT_LE(held_out.at("kl_p99"), 5);
  EXPECT_LE(held_out.at("kl_p99"), held_out.at("kl_p999"));
  for (const json& contract : {found.at("contract"), made.at("contract")}) {
    EXPECT_EQ(contract.at("max_kl_p99"), 5);
    EXPECT_EQ(contract.at("max_kl_p999"), 25);
  }
  EXPECT_EQ(made.at("format"), "sluice-plan");
  EXPECT_EQ(made.at("contract").at("max_kl"), 0.5);
  EXPECT_EQ(made.at("model").at("sha256"), found.at("model").at("sha256"));
  EXPECT_EQ(made.at("measured").at("dtype"), "f32");
  EXPECT_EQ(made.at("measured").at("threads"), found.at("machine").at("threads"));
  EXPECT_TRUE(found.at("dense_because").is_null());

  run_ok({"eval", "-m", folder.path(), "-f", text, "-c", "32", "--plan", plan, "--quiet", "--json",
          file});
  const json evaluated = parsed(file);
  EXPECT_EQ(evaluated.at("runs")[0].at("settings").at("plan"), "plan.json");
  EXPECT_EQ(evaluated.at("model").at("sha256"), made.at("model").at("sha256"));
  EXPECT_GT(evaluated.at("metrics").at("kl_mean"), 0);
  EXPECT_LT(evaluated.at("metrics").at("keys_read_fraction"), 1);
  run_ok({"bench", "-m", folder.path(), "-f", text, "-c", "32", "-n", "2", "--repeat", "1",
          "--plan", plan, "--quiet", "--json", file});
  EXPECT_EQ(parsed(file).at("cases")[1].at("label"), "plan.json");
  const RunResult shown = run_ok({"inspect", plan});
  EXPECT_NE(shown.out.find("KL up to 0.5"), std::string::npos) << shown;
}

// What the page says of such a plan: tests/browser/contract_test.py.
TEST_F(TuneCommand, PlansForMemoryAndReadsAreFollowedWhateverTheirSpeed) {
  const std::string words = "followed whatever its speed, by prompts of up to 32 tokens";
  const RunResult tuned = run_ok(tune({"--max-kl", "0.5", "--objective", "memory"}));
  EXPECT_NE(tuned.out.find(words), std::string::npos) << tuned;
  json slow = parsed(plan);
  slow["auto"] = {{"prefill_from", nullptr}, {"decode_from", nullptr}};
  for (const char* objective : {"memory", "reads", "decode-reads", "prefill", "decode"}) {
    slow["objective"] = objective;
    const std::string path = out.write("slow.json", slow.dump()).string();
    const bool follows = std::string(objective) != "prefill" && std::string(objective) != "decode";
    const auto ran = [&](const std::string& prompt) {
      run_ok({"generate", "-m", folder.path(), "-p", prompt, "-n", "4", "--plan", path, "--quiet",
              "--json", file});
      return parsed(file).at("settings").at("ran").get<std::string>();
    };
    EXPECT_EQ(ran("abab"), follows ? "plan" : "dense") << objective;
    EXPECT_EQ(ran(std::string(33, 'a')), "dense") << objective;  // more than its context
    const RunResult shown = run_ok({"inspect", path});
    EXPECT_EQ(shown.out.find(words) != std::string::npos, follows) << shown;
  }
}

TEST_F(TuneCommand, GenerateSaysWhichRan) {
  run_ok(tune({"--max-kl", "0.5", "--objective", "memory"}));
  const Args generate{"generate", "-m", folder.path(), "-p", "abab", "-n", "4", "--plan", plan};
  EXPECT_NE(run_ok(generate).err.find("plan plan.json"), std::string::npos);
  // The same plan, made for speed and faster from 1,000 tokens on only.
  json slow = parsed(plan);
  slow["objective"] = "prefill";
  slow["auto"] = {{"prefill_from", 1000}, {"decode_from", 1000}};
  Args other = generate;
  other.back() = out.write("slow.json", slow.dump()).string();
  EXPECT_NE(run_ok(other).err.find("dense: slow.json was not measured faster"), std::string::npos);
  other.push_back("--always");
  EXPECT_NE(run_ok(other).err.find("plan slow.json"), std::string::npos);
}

TEST_F(TuneCommand, BenchFollowsThePlanWhereGenerateWould) {
  run_ok(tune({"--max-kl", "0.5", "--objective", "memory"}));
  json timed = parsed(plan);
  timed["objective"] = "prefill";
  timed["auto"] = {{"prefill_from", 16}, {"decode_from", 24}};
  const std::string path = out.write("timed.json", timed.dump()).string();
  // Which ran, by name of the test; of the plan alone.
  const auto ran = [&](const Args& more) {
    Args args{"bench", "-m",       folder.path(), "-f",      text,     "--plan",
              path,    "--repeat", "1",           "--quiet", "--json", file};
    args.insert(args.end(), more.begin(), more.end());
    const RunResult result = run_ok(args);
    json names;
    const json results = parsed(file);
    for (const json& found : results.at("cases")) {
      const json& settings = found.at("settings");
      if (!settings.contains("plan")) continue;
      const bool dense = settings.at("ran") == "dense";
      EXPECT_EQ(settings.at("plan"), "timed.json");
      EXPECT_EQ(found.at("label"), dense ? "timed.json (dense)" : "timed.json");
      EXPECT_EQ(found.at("mode"), dense ? "dense" : "keys");
      EXPECT_EQ(found.at("n_reps_fraction").is_null(), dense);
      EXPECT_NE(result.out.find("| " + found.at("label").get<std::string>() + " "),
                std::string::npos)
          << result;
      names[found.at("name").get<std::string>()] = settings.at("ran");
    }
    return names;
  };
  // Decoding is not faster behind 16 tokens, and the loss was not measured behind 32.
  EXPECT_EQ(ran({"-c", "8,16,24,39", "-n", "4"}), json({{"pp8", "dense"},
                                                        {"tg@8", "dense"},
                                                        {"pp16", "dense"},
                                                        {"tg@16", "dense"},
                                                        {"pp24", "plan"},
                                                        {"tg@24", "plan"},
                                                        {"pp39", "dense"}}));
  // It was made for 32 tokens.
  EXPECT_EQ(ran({"-c", "32,33", "-n", "0"}), json({{"pp32", "plan"}, {"pp33", "dense"}}));
  EXPECT_EQ(ran({"-c", "8,16", "-n", "0"}), json({{"pp8", "dense"}, {"pp16", "plan"}}));
  EXPECT_EQ(ran({"-c", "8", "-n", "0", "--always"}), json({{"pp8", "plan"}}));
  expect_complaint(run_program({"bench", "-m", folder.path(), "--always"}), 2,
                   {"--always", "--plan"});

  const auto generated = [&](const Args& more) {
    Args args{"generate", "-m",     folder.path(), "-p",      "abab",   "-n",
              "4",        "--plan", path,          "--quiet", "--json", file};
    args.insert(args.end(), more.begin(), more.end());
    run_ok(args);
    return parsed(file).at("settings");
  };
  const json dense = generated({}), always = generated({"--always"});
  EXPECT_EQ(dense.at("plan"), "timed.json");
  EXPECT_EQ(dense.at("ran"), "dense");
  EXPECT_EQ(dense.at("attention"), "dense");
  EXPECT_EQ(always.at("ran"), "plan");
  EXPECT_EQ(always.at("attention"), "keys");
}

TEST_F(TuneCommand, AnalyzeFollowsThePlansSets) {
  run_ok(tune({"--max-kl", "0.5", "--objective", "memory"}));
  const Args analyze{"analyze", "-m", folder.path(), "-f", text, "--plan", plan, "--quiet"};
  const auto with = [&](const Args& more) {
    Args args = analyze;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::string page = (out.path() / "r.html").string();
  const RunResult shown = run_ok(with({"--windows", "2", "--json", file, "--html", page}));
  for (const char* title : {"the sets of plan.json", "over 2 windows", "Keys read", "| all "})
    EXPECT_NE(shown.out.find(title), std::string::npos) << title << "\n" << shown;
  for (const char* title : {"Table ", "Agreement", "Cost model"})
    EXPECT_EQ(shown.out.find(title), std::string::npos) << title << "\n" << shown;
  EXPECT_EQ(shown.err, "");
  const json found = parsed(file);
  EXPECT_EQ(found.at("settings").at("plan"), "plan.json");
  EXPECT_EQ(found.at("settings").at("context"), json({32}));  // the plan's
  EXPECT_EQ(found.at("model").at("sha256"), parsed(plan).at("model").at("sha256"));
  EXPECT_EQ(found.at("plan").at("layers").size(), 2u);
  const json& run = found.at("runs").at(0);
  EXPECT_EQ(run.at("n_tokens"), 32);
  EXPECT_EQ(run.at("n_windows"), 2);
  EXPECT_EQ(run.at("layers").size(), 2u);
  EXPECT_LT(run.at("summary").at("keys_read_fraction"), 1);

  const RunResult table = run_ok(with({"-c", "16,24", "--format", "csv"}));
  EXPECT_NE(table.out.find("dense attention reads and keeps, 16 tokens"), std::string::npos)
      << table;
  EXPECT_NE(table.out.find("dense attention reads and keeps, 24 tokens"), std::string::npos)
      << table;

  for (const Args& other :
       {Args{"--tau", "0.3"}, Args{"--select", "greedy"}, Args{"--space", "normed"},
        Args{"--sinks", "1"}, Args{"--outlier-ratio", "1"}, Args{"--deep", "1"}, Args{"--subspace"},
        Args{"--joint"}, Args{"--bases", "b"}, Args{"--rank", "2"}, Args{"--seed", "1"}})
    expect_complaint(run_program(with(other)), 2, {"--plan", other.front()});
  json paper = parsed(plan);
  paper["layers"][1] = {{"layer", 1}, {"mode", "paper"}, {"heads", json::array()}};
  for (int64_t h = 0; h < paper["model"]["n_kv_heads"]; ++h)
    paper["layers"][1]["heads"].push_back({{"kind", "clusters"}, {"tau", 0.3}});
  Args args = analyze;
  args[6] = out.write("paper.json", paper.dump()).string();
  expect_complaint(run_program(args), 1, {"layer 1", "attention paper"});
  const RunResult generated = run_program(
      {"generate", "-m", folder.path(), "-p", "abab", "-n", "4", "--plan", args[6], "--always"});
  expect_complaint(generated, 1, {"paper.json", "cannot generate"});
  EXPECT_EQ(generated.out, "");
  for (const Args& leaks : {Args{"eval", "--windows", "1"}, Args{"bench", "-n", "0", "--always"}})
    EXPECT_NE(run_ok(joined(leaks, {"-m", folder.path(), "-f", text, "-c", "32", "--plan", args[6],
                                    "--quiet"}))
                  .err.find("attention paper shows a causal model tokens that are still to come"),
              std::string::npos)
        << leaks.front();
}

TEST_F(TuneCommand, ARunUnlikeThoseMeasuredGetsALine) {
  run_ok(tune({"--max-kl", "0.5", "--objective", "memory"}));
  const std::vector<Args> runs = {{"eval", "-f", text, "-c", "32", "--windows", "1"},
                                  {"bench", "-f", text, "-c", "32", "-n", "2", "--repeat", "1"},
                                  {"analyze", "-f", text, "-c", "32", "--windows", "1"},
                                  {"generate", "-p", "abab", "-n", "4"}};
  // Those of stderr but generate's figures.
  const auto lines = [&](Args args, const std::string& path, const Args& more = {}) {
    args.insert(args.end(), {"-m", folder.path(), "--plan", path, "--quiet"});
    args.insert(args.end(), more.begin(), more.end());
    const std::string all = run_ok(args).err;
    return all.starts_with("prompt ") ? all.substr(all.find('\n') + 1) : all;
  };
  json other = parsed(plan);
  other["measured"]["threads"] = 999;
  const std::string threads = out.write("threads.json", other.dump()).string();
  other["measured"] = {{"dtype", "bf16"}, {"device", "a\nB"}, {"threads", 1}};
  other["context"] = 3;
  const std::string all = out.write("all.json", other.dump()).string();
  other.erase("measured");
  const std::string untold = out.write("untold.json", other.dump()).string();
  for (const Args& run : runs) {
    EXPECT_EQ(lines(run, plan), "");
    EXPECT_EQ(lines(run, threads, {"-t", "2"}),
              "sluice: threads.json was measured with 999 threads, here it runs with 2 threads: "
              "what is faster may differ\n");
    Args followed = {"-t", "1"};
    if (run[0] == "bench" || run[0] == "generate") followed.push_back("--always");
    const std::string several = lines(run, all, followed);
    EXPECT_NE(several.find("all.json was measured in bf16 on a\\x0aB, here it runs in f32 on "),
              std::string::npos)
        << several;
    EXPECT_NE(several.find("all.json was measured with up to 3 tokens, here are up to "),
              std::string::npos)
        << several;
    EXPECT_EQ(lines(run, untold).find("here it runs"), std::string::npos);
  }
  // The context is that of a run that follows the plan.
  other["objective"] = "prefill";
  other["auto"] = {{"prefill_from", 1000}, {"decode_from", 1000}};
  EXPECT_EQ(lines(runs.back(), out.write("slow.json", other.dump()).string()), "");
}

// Whether so short a text gains by it, the clock says.
TEST_F(TuneCommand, RefinesByDefault) {
  const RunResult result = run_ok(tune_refined(
      {"--max-kl", "0.5", "--max-kl-p99", "1", "--max-kl-p999", "inf", "--json", file}));
  EXPECT_NE(result.out.find("KL 0.5, held by mean + 2 standard errors; KL of tokens p99 1\n"),
            std::string::npos)
      << result;
  const json found = parsed(file), settings = found.at("settings");
  EXPECT_EQ(settings.at("attention"), "refine");
  EXPECT_EQ(settings.at("delta"), json({0.1, nullptr}));
  EXPECT_EQ(settings.at("segment"), 8);
  EXPECT_EQ(settings.at("page"), 4);
  EXPECT_EQ(settings.at("needles"), false);
  EXPECT_EQ(found.at("contract").at("max_kl_p99"), 1);
  EXPECT_TRUE(found.at("contract").at("max_kl_p999").is_null());
  EXPECT_FALSE(settings.contains("tau"));
  for (const json& layer : found.at("plan").at("layers"))
    EXPECT_TRUE(layer.at("mode") == "refine" || layer.at("mode") == "dense") << layer;
  run_ok({"eval", "-m", folder.path(), "-f", text, "-c", "32", "--plan", plan, "--quiet"});
}

TEST_F(TuneCommand, FlagsOfOneModeAreRefusedInTheOther) {
  for (const Args& other :
       {Args{"--delta", "0.1"}, Args{"--segment", "8"}, Args{"--page", "4"}, Args{"--tile", "4"}})
    expect_complaint(run_program(tune(joined({"--max-kl", "1"}, other))), 2,
                     {other.front(), "--attention refine"});
  for (const Args& other :
       {Args{"--tau", "0.1"}, Args{"--far", "own"}, Args{"--objective", "memory"}})
    expect_complaint(run_program(tune_refined(joined({"--max-kl", "1"}, other))), 2,
                     {other.front(), "--attention keys"});
  expect_complaint(run_program(tune_refined({"--max-kl", "1", "--tile", "3"})), 1, {"tile 3"});
  expect_complaint(run_program(tune_refined({"--max-kl", "1", "--max-kl-p99", "nan"})), 2,
                   {"--max-kl-p99"});
}

TEST_F(TuneCommand, NothingAllowedIsDenseAndFine) {
  const RunResult result = run_ok(tune({"--max-kl", "0", "--objective", "memory"}));
  EXPECT_NE(result.out.find("dense: no choice saves anything within the contract"),
            std::string::npos)
      << result;
  run_ok({"eval", "-m", folder.path(), "-f", text, "-c", "32", "--plan", plan, "--quiet"});
}

TEST_F(TuneCommand, RefusesInOneLine) {
  expect_complaint(run_program(tune({})), 2, {"--max-kl"});
  expect_complaint(run_program(tune({"--max-kl", "-1"})), 2, {"--max-kl"});
  expect_complaint(run_program(tune({"--max-kl", "nan"})), 2, {"--max-kl"});
  expect_complaint(run_program(tune({"--max-ppl-ratio", "0.5"})), 2, {"--max-ppl-ratio"});
  // No room for a needle of one token per letter.
  Args needles = tune({"--max-kl", "0.1"});
  std::erase(needles, "--no-needles");
  expect_complaint(run_program(needles), 1, {"33 tokens has no room", "--no-needles"});
  Args same = tune({"--max-kl", "0.1"});
  same[8] = text;
  expect_complaint(run_program(same), 2, {"documents.txt"});
  const TempDir dir;
  Args little = tune({"--max-kl", "0.1"});
  little[4] = dir.write("little.txt", "abc").string();
  expect_complaint(run_program(little), 1, {"fewer than three windows"});
  const std::string broken = dir.write("broken.json", "{\"format\": \"sluice-plan\"").string();
  expect_complaint(run_program(eval_of(folder, {"--plan", broken})), 1, {"broken.json"});
  run_ok(tune({"--max-kl", "0.5", "--objective", "memory"}));
  for (const Args& choice : {Args{"--attention", "keys"}, Args{"--linear", "graded"}})
    for (Args args : {Args{"eval", "-f", text}, Args{"bench"}, Args{"generate", "-p", "a"}}) {
      args.insert(args.end(), {"-m", folder.path(), "--plan", plan});
      args.insert(args.end(), choice.begin(), choice.end());
      expect_complaint(run_program(args), 2, {"--plan", "--attention", "--linear"});
    }
  json other = parsed(plan);
  other["model"]["sha256"] = std::string(64, '0');
  expect_complaint(
      run_program(eval_of(folder, {"--plan", dir.write("other.json", other.dump()).string()})), 1,
      {"other.json", "model"});
}

}  // namespace
}  // namespace sluice::impl
