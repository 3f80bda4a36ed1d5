// sluice inspect PLAN.json.

#include "cli/refusals.h"
#include "paths.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

std::string sample_path() { return (test::fuzz_corpus_dir() / "plan/everything.json").string(); }

TEST(InspectPlan, SaysWhatItWasMadeFor) {
  const RunResult result = run_ok({"inspect", sample_path()});
  EXPECT_EQ(result.err, "");
  expect_all_in({"model          gpt2, layers 5, key/value heads 3, sha256 aaaaaaaaaaaa...\n",
                 "context        1024\n", "objective      decode\n",
                 "contract       KL up to 0.01, its p99 up to 0.1\n", "predicted      KL 0.0081\n",
                 "calibration    KL 0.0083, 20480 tokens\n",
                 "held out       KL 0.0085 ± 0.0004, perplexity ratio 1.0040, 10240 tokens, "
                 "12 documents\n",
                 "time           dense 120.5 ms, with the plan 80.2 ms\n",
                 "text           text.txt\n", "made by        sluice tune -m gpt2\n",
                 "taken in prefill from 512 tokens, in decode at no length\n",
                 "measured       bf16, 16 threads, a processor\n", "plan/bases.safetensors\n"},
                result);
}

TEST(InspectPlan, ShowsLayersAndHeads) {
  const RunResult result = run_ok({"inspect", sample_path()});
  expect_all_in({"| 0      | dense     | -  ", "| mlp_inner: graded, epsilon 0.05  ",
                 "| 1      | keys      | cascade-cover, normed, joint | 0.3 values  ",
                 "| 64 / 32  ", "| 2      | keys      | reused  ", "| 0.3 own, 0.3 values |",
                 "| 3      | copy      | greedy, residual  ",
                 "| attention_input: gsi, rank 16, epsilon 0.1, adaptive 4 |",
                 "\nhead 0   █▒▒░█\nhead 1   █·▒░█\nhead 2   ███░█\n"},
                result);
}

// A dense plan of a model with `n_layers` layers and two heads.
json dense_plan(int n_layers) {
  json layers = json::array();
  for (int l = 0; l < n_layers; ++l) layers.push_back({{"layer", l}});
  return {{"format", "sluice-plan"},
          {"version", 1},
          {"model",
           {{"sha256", std::string(64, '0')},
            {"family", "opt"},
            {"n_layers", n_layers},
            {"n_kv_heads", 2}}},
          {"context", 64},
          {"layers", layers}};
}

TEST(InspectPlan, LayersThatDoTheSameShareARow) {
  const TempDir folder;
  json plan = dense_plan(24);
  plan["layers"][23] = {{"layer", 23},
                        {"mode", "keys"},
                        {"heads", {{{"kind", "clusters"}, {"tau", 0.1}}, {{"kind", "window"}}}}};
  const RunResult result = run_ok({"inspect", folder.write("plan.json", plan.dump())});
  const auto blocks = [](int n, const std::string& last) {
    std::string text;
    for (int i = 0; i < n; ++i) text += "█";
    return text + last + "\n";
  };
  expect_all_in({"contract       none\n", "auto           not measured\n", "| 0-22   | dense",
                 "| 23     | keys", "\n         0         10        20\n",
                 "head 0   " + blocks(23, "▓"), "head 1   " + blocks(23, "·")},
                result);
}

TEST(InspectPlan, OddProvenanceIsPassedOver) {
  const TempDir folder;
  json plan = dense_plan(1);
  plan["provenance"] = {{"held_out", 3},
                        {"calibration", {{"kl_mean", "low"}, {"n_tokens", 5}}},
                        {"time", {{"plan_ms", 2}}},
                        {"text", {{"path", {1, 2}}}},
                        {"command_line", "a\x1b[2Jb"}};
  const RunResult result = run_ok({"inspect", folder.write("plan.json", plan.dump())});
  expect_all_in({"calibration    5 tokens\n", "time           with the plan 2.0 ms\n",
                 "made by        a\\x1b[2Jb\n"},
                result);
  EXPECT_EQ(result.out.find("held out"), std::string::npos) << result;
  EXPECT_EQ(result.out.find("\ntext "), std::string::npos) << result;
}

TEST(InspectPlan, WritesResultsThatReportReads) {
  const TempDir folder;
  const std::string file = (folder.path() / "results.json").string();
  run_ok({"inspect", sample_path(), "--json", file});
  const json results = json::parse(read_bytes(file));
  EXPECT_EQ(results.at("command"), "inspect");
  EXPECT_EQ(results.at("model"), results.at("plan").at("model"));
  const json written = json::parse(read_bytes(sample_path()));
  json plan = results.at("plan");
  const json dense = {{"kind", "dense"}};
  EXPECT_EQ(plan.at("layers").at(0).at("mode"), "dense");
  EXPECT_EQ(plan.at("layers").at(4).at("heads"), json({dense, dense, dense}));
  for (size_t l = 0; l < 5; ++l)
    for (const auto& [key, value] : written.at("layers").at(l).items())
      EXPECT_EQ(plan.at("layers").at(l).at(key), value) << l << " " << key;
  plan["layers"] = written.at("layers");
  EXPECT_EQ(plan, written);
  run_ok({"report", file, "-o", (folder.path() / "page.html").string()});
}

// ---- refusals ----

class RefusesPlan : public testing::TestWithParam<Refusal> {};

TEST_P(RefusesPlan, WithOneLineAndAHint) { expect_refused(GetParam()); }

Refusal bad_plan(std::string name, const std::function<void(json&)>& change,
                 std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [change](ModelFolder& folder) {
                json plan = json::parse(read_bytes(sample_path()));
                change(plan);
                return Args{"inspect", folder.write("plan.json", plan.dump())};
              },
          .fragments = std::move(fragments)};
}

Refusal bad_usage(std::string name, const Args& args, std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build = [args](ModelFolder&) { return args; },
          .fragments = std::move(fragments),
          .code = 2};
}

std::vector<Refusal> plan_refusals() {
  return {
      bad_plan("UnknownField", [](json& plan) { plan["layers"][1]["taus"] = 1; },
               {"plan.json: layers[1].taus: is not a known key", "known here: layer, mode"}),
      bad_plan("TauOutOfRange", [](json& plan) { plan["layers"][1]["heads"][0]["tau"] = 1.7; },
               {"plan.json: layers[1].heads[0].tau: expected a number from 0 to 1, found 1.7"}),
      bad_plan("NewerVersion", [](json& plan) { plan["version"] = 2; },
               {"plan.json: version: 2 was made by a newer sluice"}),
      {.name = "CutShort",
       .build =
           [](ModelFolder& folder) {
             const std::string whole = read_bytes(sample_path());
             return Args{"inspect", folder.write("plan.json", whole.substr(0, whole.size() / 2))};
           },
       .fragments = {"plan.json: layers[", "not valid JSON", "complete"}},
      {.name = "ResultsInsteadOfAPlan",
       .build =
           [](ModelFolder& folder) {
             return Args{"inspect", folder.write("results.json", R"({"schema": 1})")};
           },
       .fragments = {"results.json: is not a plan of sluice"}},
      {.name = "AFolderInsteadOfAPlan",
       .build =
           [](ModelFolder& folder) {
             return Args{"inspect", folder.path()};
           },
       .fragments = {": is not a plan", "-m"}},
      {.name = "NoSuchFile",
       .build =
           [](ModelFolder& folder) {
             return Args{"inspect", folder.file("none.json")};
           },
       .fragments = {"none.json: cannot open"}},
      bad_usage("NeitherModelNorPlan", {"inspect"}, {"--model, or a plan"}),
      bad_usage("BothModelAndPlan", {"inspect", "plan.json", "-m", "model"}, {"one of the two"}),
      bad_usage("ContextOfAPlan", {"inspect", sample_path(), "-c", "3"}, {"--context"}),
      bad_usage("ResultsOverThePlan", {"inspect", sample_path(), "--json", sample_path()},
                {"would be overwritten"}),
  };
}

INSTANTIATE_TEST_SUITE_P(All, RefusesPlan, testing::ValuesIn(plan_refusals()), name_of);

}  // namespace
}  // namespace sluice::impl
