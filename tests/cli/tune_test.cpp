// A contract in, a plan out, and the commands that follow it.

#include "cli/refusals.h"

namespace sluice {
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
    Args args{"tune", "-m",        folder.path(), "-f",         text,  "-c",
              "32",   "-o",        plan,          "--tau",      "0.5", "--window",
              "8",    "--windows", "2",           "--held-out", "3",   "--quiet"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  json parsed(const std::string& path) const { return json::parse(read_bytes(path)); }

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
  EXPECT_EQ(made.at("format"), "sluice-plan");
  EXPECT_EQ(made.at("contract").at("max_kl"), 0.5);
  EXPECT_EQ(made.at("model").at("sha256"), found.at("model").at("sha256"));
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
}  // namespace sluice
