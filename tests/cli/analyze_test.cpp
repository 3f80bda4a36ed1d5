// sluice analyze at work on golden checkpoints, and what it refuses.

#include <limits>
#include <set>

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

Args analyze_of(const ModelFolder& folder, Args more = {}) {
  Args args{"analyze",  "-m",       folder.path(), "-f", folder.write("text.txt", letter_text(400)),
            "--device", "reference"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// The row of a layer and rule.
json row_of(const json& run, int layer, const char* rule) {
  for (const json& row : run.at("rows"))
    if (row.at("layer") == layer && row.at("rule") == rule) return row;
  throw std::runtime_error("there is no such row");
}

json analyzed(const ModelFolder& folder, const Args& more) {
  const std::string file = folder.file("results.json");
  run_ok(joined(analyze_of(folder, more), {"--json", file}));
  return read_results(file);
}

TEST(Analyze, PrintsThePapersTables) {
  const ModelFolder folder;
  const RunResult result = run_ok(analyze_of(folder, {"-c", "32", "--windows", "3", "--full"}));
  for (const char* title : {"Table 1.", "Table 2.", "Table 4.", "Table 5.", "Table 6.", "Table 7.",
                            "Table 8.", "Table 9.", "Cost model", "Agreement", "Attention error",
                            "over 3 windows", "r inherited", "cascade-cover", "unvalidated", " ± "})
    EXPECT_NE(result.out.find(title), std::string::npos) << title << "\n" << result;
  // This is none of the paper's models: its figures stay away.
  EXPECT_EQ(result.out.find("124M"), std::string::npos) << result;
  EXPECT_EQ(result.out.find("Covering"), std::string::npos) << result;
  EXPECT_EQ(result.err, "") << result;
}

TEST(Analyze, IsShortUnlessAskedForMore) {
  const ModelFolder folder;
  const RunResult result = run_ok(analyze_of(folder, {"-c", "32"}));
  EXPECT_EQ(count_of(result.out, "Table "), 0u) << result;
  for (const char* text :
       {"cosine to owner", "uncovered: tokens", "--full has", "With tau 0.3 and "})
    EXPECT_NE(result.out.find(text), std::string::npos) << text << "\n" << result;
}

TEST(Analyze, TablesAreAlignedMarkdown) {
  const ModelFolder folder;
  const RunResult result = run_ok(
      analyze_of(folder, {"-c", "32", "--space", "residual,key", "--tau", "0.3,0.6", "--full"}));
  std::istringstream lines(result.out);
  std::string line;
  size_t width = 0;
  const auto characters = [](const std::string& text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  };
  while (std::getline(lines, line)) {
    if (!line.starts_with("|")) {
      width = 0;
      continue;
    }
    if (width > 0) {
      EXPECT_EQ(characters(line), width) << line;
    }
    width = characters(line);
  }
  EXPECT_EQ(count_of(result.out, "Agreement with"), 4u) << result;
  EXPECT_EQ(count_of(result.out, "Sets per key/value head"), 1u) << result;
  EXPECT_EQ(count_of(result.out, "Covering number"), 1u) << result;
}

TEST(Analyze, CsvHasAsManyFieldsInEveryRow) {
  const ModelFolder folder;
  const RunResult result = run_ok(analyze_of(folder, {"-c", "32", "--format", "csv"}));
  std::istringstream lines(result.out);
  std::string line;
  std::getline(lines, line);  // what was run
  size_t n_commas = 0;
  while (std::getline(lines, line)) {
    if (line.empty() || line.starts_with("#")) {
      n_commas = 0;
      continue;
    }
    std::string bare;  // commas inside quotes do not count
    bool quoted = false;
    for (const char c : line) {
      if (c == '"') quoted = !quoted;
      if (!quoted) bare += c;
    }
    const size_t n = count_of(bare, ",");
    EXPECT_GT(n, 0u) << line;
    if (n_commas > 0) {
      EXPECT_EQ(n, n_commas) << line;
    }
    n_commas = n;
  }
}

TEST(Analyze, WritesEveryRun) {
  const ModelFolder folder;
  const json results = analyzed(
      folder, {"-c", "16,32", "--tau", "0.2,0.5", "--space", "normed,key", "--windows", "2",
               "--select", "cascade-cover,cascade-paper", "--sinks", "1", "--deep", "1"});
  EXPECT_EQ(results.at("command"), "analyze");
  EXPECT_EQ(results.at("text").at("n_tokens"), 64);
  EXPECT_EQ(results.at("settings").at("sinks"), 1);
  std::set<std::string> seen;
  for (const json& run : results.at("runs")) {
    seen.insert(run.at("n_tokens").dump() + " " + run.at("tau").dump() + " " +
                run.at("space").get<std::string>());
    EXPECT_EQ(run.at("n_windows"), 2);
    EXPECT_EQ(run.at("summary").at("rule"), "cascade-cover");
    EXPECT_EQ(run.at("summary").at("first_deep_layer"), 1);
    double sum = 0;
    for (int layer = 0; layer < 2; ++layer) {
      const json& row = row_of(run, layer, "cascade-cover");
      sum += row.at("n_reps").get<double>();
      EXPECT_EQ(row.at("uncovered"), 0);
      EXPECT_EQ(row.at("tau"), run.at("tau"));
    }
    EXPECT_EQ(run.contains("heads"), run.at("space") == "key");
    EXPECT_DOUBLE_EQ(run.at("summary").at("mean_n_reps_cascade"), sum / 2);
  }
  EXPECT_EQ(seen.size(), 8u);
}

// One window, so the figures of the profile are those of the map.
TEST(Analyze, TheMapAgreesWithTheProfile) {
  const ModelFolder folder;
  const json results = analyzed(folder, {"-c", "32,16", "--tau", "0.6,0.3", "--space", "key,normed",
                                         "--windows", "1", "--select", "cascade-cover"});
  const json& map = results.at("map");
  EXPECT_EQ(map.at("tau"), 0.6);
  EXPECT_EQ(map.at("n_tokens"), 32);
  EXPECT_EQ(map.at("space"), "normed");
  EXPECT_EQ(map.at("rule"), "cascade-cover");
  std::string text;
  ASSERT_EQ(map.at("tokens").size(), 32u);
  for (const json& token : map.at("tokens")) text += token.get<std::string>();
  EXPECT_EQ(text, "<|endoftext|>" + letter_text(31));
  const json& profile = results.at("runs").at(1);
  EXPECT_EQ(profile.at("space"), "normed");
  ASSERT_EQ(map.at("layers").size(), 2u);
  int64_t n_redundant = 0;
  for (size_t l = 0; l < 2; ++l) {
    const json& layer = map.at("layers")[l];
    EXPECT_EQ(layer.at("layer"), l);
    const std::string status = layer.at("status");
    ASSERT_EQ(status.size(), 32u);
    ASSERT_EQ(layer.at("owner").size(), 32u);
    ASSERT_EQ(layer.at("cosine").size(), 32u);
    const auto n_of = [&](char letter) { return std::count(status.begin(), status.end(), letter); };
    const json& cascade = row_of(profile, static_cast<int>(l), "cascade-cover");
    EXPECT_EQ(cascade.at("n_reps"), n_of('R') + n_of('E'));
    EXPECT_EQ(cascade.at("n_outside"), n_of('.'));
    EXPECT_EQ(n_of('U'), 0);
    EXPECT_EQ(status.substr(0, 4), "EEEE");
    for (size_t t = 0; t < 32; ++t) {
      const size_t owner = layer.at("owner")[t];
      const double cosine = layer.at("cosine")[t];
      if (status[t] == '.') {
        ++n_redundant;
        ASSERT_LT(owner, t);
        EXPECT_EQ(status[owner], 'R') << t;
        EXPECT_GE(cosine, 1 - 0.6 * 0.6 - 0.5e-4) << t;  // of four decimals
      } else {
        EXPECT_EQ(owner, t);
        EXPECT_EQ(cosine, 1) << t;
      }
    }
  }
  EXPECT_GT(n_redundant, 0);
  EXPECT_FALSE(results.contains("paper"));  // this is none of its models
}

TEST(Analyze, ThereIsNoMapOfHeads) {
  const ModelFolder folder;
  EXPECT_FALSE(analyzed(folder, {"-c", "16", "--space", "key"}).contains("map"));
}

TEST(Analyze, SettingsFollowTheFirstRuleUnlessGiven) {
  const auto expect_settings = [](const json& results, const char* space, int sinks,
                                  double outlier_ratio) {
    const json& settings = results.at("settings");
    EXPECT_EQ(settings.at("space"), json::array({space}));
    EXPECT_EQ(settings.at("sinks"), sinks);
    EXPECT_EQ(settings.at("outlier_ratio"), outlier_ratio);
    EXPECT_EQ(results.at("runs").at(0).at("space"), space);
  };
  const ModelFolder folder;
  const auto run = [&](Args more) {
    more.insert(more.end(), {"-c", "16", "--windows", "1"});
    return analyzed(folder, more);
  };
  expect_settings(run({}), "residual", 0, 0);
  expect_settings(run({"--select", "cascade-paper,cascade-cover"}), "residual", 0, 0);
  expect_settings(run({"--select", "independent"}), "residual", 0, 0);
  for (const char* rules : {"cascade-cover,cascade-paper", "cascade-causal", "greedy"})
    expect_settings(run({"--select", rules}), "normed", 4, 8);
  expect_settings(run({"--select", "cascade-cover", "--space", "residual", "--sinks", "0"}),
                  "residual", 0, 8);
  const ModelFolder encoder("bert");
  expect_settings(analyzed(encoder, {"-c", "16", "--select", "cascade-cover"}), "normed", 0, 8);
}

TEST(Analyze, RulesThatInheritNothingStandForTheCascade) {
  const ModelFolder folder;
  const json results = analyzed(folder, {"-c", "16", "--windows", "1", "--select", "greedy"});
  EXPECT_EQ(results.at("runs").at(0).at("summary").at("rule"), "greedy");
  EXPECT_GT(row_of(results.at("runs").at(0), 1, "greedy").at("n_reps"), 0);
  const RunResult printed =
      run_ok(analyze_of(folder, {"-c", "16", "--select", "independent", "--full"}));
  EXPECT_EQ(printed.out.find("Table 2."), std::string::npos) << printed;
  EXPECT_EQ(printed.out.find("cascade-paper"), std::string::npos) << printed;
  EXPECT_NE(printed.out.find("Table 5."), std::string::npos) << printed;
}

TEST(Analyze, TauZeroHasNoFigureThatIsNotANumber) {
  const ModelFolder folder;
  const RunResult result = run_ok(analyze_of(folder, {"-c", "16", "--tau", "0"}));
  EXPECT_EQ(result.out.find("nan"), std::string::npos) << result;
  EXPECT_EQ(result.out.find("inf"), std::string::npos) << result;
}

TEST(Analyze, TheDefaultLengthIsTheModelsWhereThatIsShorter) {
  const ModelFolder folder;  // 40 positions
  EXPECT_EQ(analyzed(folder, {"--windows", "1"}).at("runs").at(0).at("n_tokens"), 40);
}

TEST(Analyze, AnEncoderHasAProfileToo) {
  const ModelFolder folder("bert");
  const json results = analyzed(folder, {"-c", "16", "--space", "residual,key"});
  EXPECT_EQ(results.at("runs").size(), 2u);
  EXPECT_EQ(results.at("model").at("family"), "bert");
}

TEST(Analyze, TheSameSeedDrawsTheSameRandomSets) {
  const ModelFolder folder;
  const auto random = [&](const char* seed) {
    const json results = analyzed(folder, {"-c", "32", "--seed", seed, "--tau", "0.6"});
    return row_of(results.at("runs").at(0), 1, "random");
  };
  EXPECT_EQ(random("3"), random("3"));
  EXPECT_NE(random("3"), random("4"));
}

TEST(Analyze, WeightsThatAreNotNumbersAreRefused) {
  const ModelFolder folder;
  folder.edit_tensors([](json& header, std::string& data) {
    const size_t begin = header["transformer.wte.weight"]["data_offsets"][0];
    const size_t end = header["transformer.wte.weight"]["data_offsets"][1];
    const std::string nan = pack(std::numeric_limits<float>::quiet_NaN());
    for (size_t at = begin; at < end; at += 4) data.replace(at, 4, nan);
  });
  expect_complaint(run_program(analyze_of(folder, {"-c", "16"})), 1, {"not finite"});
}

class RefusesAnalyze : public testing::TestWithParam<Refusal> {};
TEST_P(RefusesAnalyze, WithOneLineAndAHint) { expect_refused(GetParam()); }

Refusal refusal(std::string name, const Args& more, std::vector<std::string> fragments, int code) {
  return {.name = std::move(name),
          .build = [more](ModelFolder& folder) { return analyze_of(folder, more); },
          .fragments = std::move(fragments),
          .code = code};
}

std::vector<Refusal> refusals() {
  return {
      refusal("TauOfOne", {"--tau", "0.3,1"}, {"--tau", "1 given", "below 1"}, 2),
      refusal("NegativeTau", {"--tau", "-0.1"}, {"--tau", "-0.1"}, 2),
      refusal("TauIsText", {"--tau", "0.3,low"}, {"--tau", "low"}, 2),
      refusal("TauIsNan", {"--tau", "nan"}, {"--tau", "nan"}, 2),
      refusal("UnknownSpace", {"--space", "residual,query"}, {"--space", "query", "normed"}, 2),
      refusal("UnknownRule", {"--select", "fixed"}, {"--select", "fixed", "cascade-cover"}, 2),
      refusal("ContextOfZero", {"-c", "0"}, {"--context", "0"}, 2),
      refusal("NoWindows", {"--windows", "0"}, {"--windows", "0"}, 2),
      refusal("UnknownFormat", {"--format", "html"}, {"--format", "html"}, 2),
      refusal("ContextBeyondTheModels", {"-c", "16,41"}, {"41", "40", "--context"}, 1),
      refusal("DeepBeyondTheLayers", {"--deep", "2"},
              {"--deep 2", "the last layer of the model, 1"}, 1),
      {.name = "TextShorterThanAWindow",
       .build =
           [](ModelFolder& folder) {
             return Args{
                 "analyze", "-m", folder.path(), "-f", folder.write("text.txt", letter_text(20)),
                 "-c",      "32"};
           },
       .fragments = {"21 tokens", "32", "--context"}},
      {.name = "NoText",
       .build =
           [](ModelFolder& folder) {
             return Args{"analyze", "-m", folder.path(), "-f", folder.file("absent.txt")};
           },
       .fragments = {"absent.txt"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Refusals, RefusesAnalyze, testing::ValuesIn(refusals()), name_of);

}  // namespace
}  // namespace sluice::impl
