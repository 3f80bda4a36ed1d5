// sluice bench: its table, its file, and what it refuses. What anything took is never looked at.

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

Args bench_of(const ModelFolder& folder, const Args& more = {}) {
  Args args{"bench", "-m", folder.path(), "--repeat", "2"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Args text_bench_of(const ModelFolder& folder, const Args& more = {}) {
  Args args = bench_of(folder, {"-f", folder.write("text.txt", letter_text(400))});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

json results_of(const ModelFolder& folder, const Args& args) {
  const std::string file = folder.file("results.json");
  run_ok(joined(args, {"--json", file}));
  return read_results(file);
}

TEST(Bench, TimesEveryChoiceAtEveryLength) {
  const ModelFolder folder;
  const json results =
      results_of(folder, text_bench_of(folder, {"-c", "16,8,16", "-n", "4", "--attention", "keys",
                                                "--window", "4", "--tau", "0,0.9"}));
  EXPECT_EQ(results.at("command"), "bench");
  EXPECT_EQ(results.at("text").at("n_tokens"), 20);
  EXPECT_EQ(results.at("settings").at("context"), json({8, 16}));
  EXPECT_EQ(results.at("settings").at("predict"), 4);
  EXPECT_EQ(results.at("settings").at("repeat"), 2);
  const json& cases = results.at("cases");
  ASSERT_EQ(cases.size(), 12u);
  const std::array names = {"pp8", "tg@8", "pp16", "tg@16"};
  const std::array labels = {"dense", "keys, tau 0", "keys, tau 0.9"};
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].at("name"), names[i / 3]);
    EXPECT_EQ(cases[i].at("label"), labels[i % 3]);
    EXPECT_EQ(cases[i].at("mode"), i % 3 == 0 ? "dense" : "keys");
    EXPECT_EQ(cases[i].at("samples_ms").size(), 2u);
  }
  EXPECT_EQ(cases[0].at("settings"), json({{"attention", "dense"}, {"linear", "dense"}}));
  EXPECT_TRUE(cases[0].at("n_reps_fraction").is_null());
  EXPECT_EQ(cases[1].at("n_reps_fraction"), 1);
  EXPECT_EQ(cases[1].at("settings").at("window"), 4);
  EXPECT_LT(cases[8].at("n_reps_fraction").get<double>(), 1);
  for (const char* key : {"speedup_vs_dense", "speedup_low", "speedup_high"})
    EXPECT_EQ(cases[0].at(key), 1) << key;
}

TEST(Bench, LabelsTellChoicesApart) {
  const ModelFolder folder;
  const RunResult result =
      run_ok(text_bench_of(folder, {"-c", "8", "-n", "0", "--attention", "keys,copy", "--far",
                                    "centroid,own", "--select", "greedy,cascade-cover"}));
  for (const char* label :
       {"| keys, tau 0.3, greedy ", "| keys, tau 0.3, greedy, far own ",
        "| keys, tau 0.3, cascade-cover ", "| copy, tau 0.3, greedy ", "| copy, tau 0.3, cascade"})
    EXPECT_NE(result.out.find(label), std::string::npos) << label << "\n" << result;
}

// What a run says on stderr before its last line, which tells what it weighed.
std::string messages(const RunResult& result) {
  const size_t last = result.err.rfind("weights ");
  EXPECT_NE(result.err.find("peak memory", last), std::string::npos) << result;
  EXPECT_EQ(result.err.find('\n', last), result.err.size() - 1) << result;
  return result.err.substr(0, last);
}

TEST(Bench, WithoutFlagsMeasuresDenseOnRandomTokens) {
  const ModelFolder folder;
  // A context of 40 leaves no room for 128 more tokens.
  const RunResult all = run_ok(bench_of(folder));
  EXPECT_NE(all.out.find("| pp40 | dense"), std::string::npos) << all;
  EXPECT_EQ(messages(all),
            "sluice: tg@40 left out: 128 more tokens do not fit the context of 40\n");
  const RunResult some = run_ok(bench_of(folder, {"-n", "8"}));
  EXPECT_NE(some.out.find("| pp32  | dense"), std::string::npos) << some;
  EXPECT_NE(some.out.find("| tg@32 | dense"), std::string::npos) << some;
  EXPECT_EQ(messages(some), "");
  const json results = results_of(folder, bench_of(folder));
  EXPECT_TRUE(results.at("text").is_null());
}

TEST(Bench, SaysThatRandomTokensHaveNoRepresentativesWorthTheName) {
  const ModelFolder folder;
  const Args more{"-c", "8", "-n", "2", "--attention", "copy"};
  const RunResult random = run_ok(bench_of(folder, more));
  EXPECT_NE(random.err.find("the tokens are random"), std::string::npos) << random;
  EXPECT_EQ(count_of(messages(random), "\n"), 1u) << random;
  EXPECT_EQ(messages(run_ok(text_bench_of(folder, more))), "");
}

TEST(Bench, PaperIsPrefillOnlyAndSaysWhy) {
  const ModelFolder folder;
  const RunResult result =
      run_ok(text_bench_of(folder, {"-c", "8,16", "-n", "2", "--attention", "paper"}));
  EXPECT_NE(result.err.find("attention paper shows a causal model tokens"), std::string::npos);
  EXPECT_NE(result.err.find("tg left out: paper, tau 0.3 looks at later tokens"),
            std::string::npos);
  EXPECT_EQ(count_of(messages(result), "\n"), 2u) << result;
  EXPECT_EQ(count_of(result.out, "| pp"), 4u) << result;
  EXPECT_EQ(count_of(result.out, "| tg@"), 2u) << result;
}

TEST(Bench, AnEncoderIsPrefillOnly) {
  const ModelFolder folder("bert");
  const RunResult result = run_ok(bench_of(folder));
  EXPECT_NE(result.out.find("| pp40 | dense"), std::string::npos) << result;
  EXPECT_EQ(messages(result), "sluice: tg left out: bert is an encoder and does not decode\n");
}

TEST(Bench, EndsWithAConclusion) {
  const ModelFolder folder;
  const Args args = text_bench_of(folder, {"-c", "8", "-n", "0", "--attention", "keys"});
  const RunResult result = run_ok(args);
  EXPECT_NE(result.out.find("reading a prompt of so many tokens"), std::string::npos) << result;
  EXPECT_NE(result.out.find("\nReading a prompt "), std::string::npos) << result;
  EXPECT_NE(result.out.find("What it loses: sluice eval"), std::string::npos) << result;
  EXPECT_EQ(result.out.find("r/T"), std::string::npos) << result;
  EXPECT_NE(run_ok(joined(args, {"--full"})).out.find("r/T"), std::string::npos);
}

TEST(Bench, CsvHasNumbersAlone) {
  const ModelFolder folder;
  const RunResult result = run_ok(bench_of(folder, {"-c", "8", "-n", "2", "--format", "csv"}));
  EXPECT_NE(result.out.find("\ntest,mode,ms,tokens/s,speed-up,low,high,select %,attend %,"
                            "linear %,rest %\npp8,dense,"),
            std::string::npos)
      << result;
  EXPECT_EQ(count_of(result.out, "\n"), 4u) << result;
}

TEST(Bench, HelpTeaches) {
  const RunResult result = run_ok({"bench", "--help"});
  for (const char* text : {"pp512", "tg@512", "every round times", "-f,--file", "-c,--context",
                           "-n,--predict", "--repeat", "--format", "--attention", "--tau",
                           "--dtype", "--threads", "--device", "--json", "sluice bench -m MODEL",
                           "fast is the share", "weights the share", "--linear gsi --bases"})
    EXPECT_NE(result.out.find(text), std::string::npos) << text << "\n" << result;
}

class RefusesBench : public testing::TestWithParam<Refusal> {};

TEST_P(RefusesBench, WithOneLineAndAHint) { expect_refused(GetParam()); }

Refusal bad_bench(std::string name, const Args& more, std::vector<std::string> fragments,
                  int code = 2) {
  return {.name = std::move(name),
          .build = [more](ModelFolder& folder) { return bench_of(folder, more); },
          .fragments = std::move(fragments),
          .code = code};
}

std::vector<Refusal> bench_refusals() {
  return {
      bad_bench("LengthOfZero", {"-c", "0"}, {"--context", "0"}),
      bad_bench("LengthIsText", {"-c", "8,long"}, {"--context", "long"}),
      bad_bench("NegativePredict", {"-n", "-1"}, {"--predict", "-1"}),
      bad_bench("NoSamples", {"--repeat", "0"}, {"--repeat", "0"}),
      bad_bench("UnknownFormat", {"--format", "html"}, {"--format", "html"}),
      bad_bench("UnknownMode", {"--attention", "sparse"}, {"--attention", "sparse"}),
      bad_bench("TauWithoutAMode", {"--tau", "0.3"}, {"--tau", "dense"}),
      bad_bench("LengthBeyondTheContext", {"-c", "8,41"}, {"41 tokens", "context of 40"}, 1),
      bad_bench("NoSuchText", {"-f", "/none/text.txt"}, {"/none/text.txt"}, 1),
      bad_bench("NoSuchFolderForResults", {"--json", "/none/results.json"}, {"/none/results.json"},
                1),
      bad_bench("WindowIsNoMultiple", {"--attention", "keys", "--window", "12", "--block", "8"},
                {"window 12", "block 8"}, 1),
      Refusal{.name = "LengthBeyondTheText",
              .build =
                  [](ModelFolder& folder) {
                    return bench_of(folder, {"-c", "12", "-f", folder.write("text.txt", "abc")});
                  },
              .fragments = {"the text has 4 tokens", "12 are asked for"}},
      Refusal{.name = "EmptyText",
              .build =
                  [](ModelFolder& folder) {
                    return bench_of(folder, {"-f", folder.write("text.txt", "")});
                  },
              .fragments = {"the text has 0 tokens"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Flags, RefusesBench, testing::ValuesIn(bench_refusals()), name_of);

}  // namespace
}  // namespace sluice::impl
