// Attention on representatives through the commands: figures, files, and what is refused.

#include <cmath>

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

// Blocks small enough for a context of 40.
const Args kKeys{"--attention", "keys", "--window", "8", "--block", "8"};

class EvalAttention : public testing::TestWithParam<const char*> {
 protected:
  RunResult eval(const Args& more) const {
    return run_ok(joined(
        {"eval", "-m", folder_.path(), "-f", text_, "--device", GetParam(), "--json", results_},
        more));
  }
  json metrics(const Args& more) const {
    eval(joined({"--quiet"}, more));
    return read_results(results_).at("metrics");
  }

  const ModelFolder folder_;
  const std::string text_ = folder_.write("text.txt", letter_text(300));
  const std::string results_ = folder_.file("results.json");
};

TEST_P(EvalAttention, KeysThatMergeNothingAreDense) {
  const json found = metrics(joined(kKeys, {"--tau", "0"}));
  // Float32 round-off in the logits, some 1e-5 of their range: the loss changes by as much, the
  // divergence by about its square.
  EXPECT_LT(found.at("kl_max").get<double>(), 1e-6);
  EXPECT_NEAR(found.at("ppl_ratio").get<double>(), 1, 1e-4);
  EXPECT_EQ(found.at("top1_agreement"), 1);
  EXPECT_EQ(found.at("keys_read_fraction"), 1);
  EXPECT_EQ(found.at("clusters_fraction"), 1);
}

TEST_P(EvalAttention, AutoIsDenseInAContextTooShortToChooseFrom) {
  const RunResult shown = eval({"--attention", "keys", "--tau", "auto"});
  expect_all_in({"Tau of the layers", "fewer than 256 tokens", "tau auto"}, shown);
  const json run = read_results(results_).at("runs").at(0), found = run.at("metrics");
  // As above.
  EXPECT_LT(found.at("kl_max").get<double>(), 1e-6);
  EXPECT_EQ(found.at("keys_read_fraction"), 1);
  EXPECT_EQ(found.at("clusters_fraction"), 1);
  EXPECT_EQ(run.at("settings").at("tau_auto"), true);
  EXPECT_TRUE(run.at("settings").at("tau").is_null());
  EXPECT_EQ(run.at("tau_chosen"), json::array());
  EXPECT_FALSE(run.at("plan").at("layers").at(0).at("heads").at(0).contains("tau"));
}

TEST_P(EvalAttention, AutoStandsInAListOfTaus) {
  expect_all_in({"KL tau 0.3", "KL tau auto"},
                eval({"--attention", "keys", "--tau", "0.3,auto,0.30"}));
  EXPECT_EQ(read_results(results_).at("runs").size(), 2u);
}

TEST_P(EvalAttention, MetricsAreThereAndAgreeWithEachOther) {
  const json found = metrics(joined(kKeys, {"--tau", "0.9"}));
  const auto value = [&](const char* key) { return found.at(key).get<double>(); };
  EXPECT_EQ(found.at("n_tokens"), 300);
  EXPECT_NEAR(value("ppl") / value("ppl_base"), value("ppl_ratio"), 1e-9 * value("ppl_ratio"));
  EXPECT_GT(value("ppl_ratio_stderr"), 0);
  EXPECT_GT(value("kl_mean"), 0);
  EXPECT_GT(value("kl_stderr"), 0);
  const std::vector<const char*> ascending = {"kl_median", "kl_p90",  "kl_p95",
                                              "kl_p99",    "kl_p999", "kl_max"};
  for (size_t i = 1; i < ascending.size(); ++i)
    EXPECT_LE(value(ascending[i - 1]), value(ascending[i])) << ascending[i];
  EXPECT_LT(value("kl_mean"), value("kl_max"));
  EXPECT_GE(value("delta_p_rms"), std::abs(value("delta_p_mean")));
  for (const char* share : {"top1_agreement", "keys_read_fraction", "clusters_fraction",
                            "selection_products", "selection_products_paper"}) {
    EXPECT_GT(value(share), 0) << share;
    EXPECT_LT(value(share), 1) << share;
  }
  EXPECT_EQ(found.at("weight_bytes_fraction"), 1);
  for (const char* not_measured :
       {"generation_match_tokens", "generation_match_characters", "fast_path_fraction"})
    EXPECT_TRUE(found.at(not_measured).is_null()) << not_measured;
  const json results = read_results(results_);
  EXPECT_EQ(results.at("runs").size(), 1u);
  EXPECT_EQ(results.at("runs")[0].at("metrics"), found);
  const json& cache = results.at("cache");
  EXPECT_EQ(results.at("runs")[0].at("cache"), cache);
  EXPECT_EQ(cache.at("n_tokens"), 40);
  for (const char* part : {"exact_bytes", "selection_rows_bytes", "dense_bytes"})
    EXPECT_GT(cache.at(part).get<int64_t>(), 0) << part;
  EXPECT_EQ(cache.at("outputs_bytes"), 0);
  EXPECT_TRUE(cache.contains("clusters_bytes"));
  EXPECT_EQ(results.at("text").at("n_tokens"), 300);
  const json expected = {{"context", 40},        {"windows", 8},        {"predict", 0},
                         {"linear", "dense"},    {"attention", "keys"}, {"select", "cascade-cover"},
                         {"space", "normed"},    {"tau", 0.9},          {"far", "centroid"},
                         {"window", 8},          {"block", 8},          {"sinks", 4},
                         {"outlier_ratio", 8.0}, {"from_layer", 0}};
  EXPECT_EQ(results.at("settings"), expected);
}

TEST_P(EvalAttention, EveryRunHasItsPlan) {
  eval(joined(kKeys, {"--tau", "0.5,0.9", "--from-layer", "1", "--windows", "1"}));
  const json results = read_results(results_);
  ASSERT_EQ(results.at("runs").size(), 2u);
  for (const json& run : results.at("runs")) {
    const json dense = {{"kind", "dense"}};
    const json clusters = {
        {"kind", "clusters"}, {"tau", run.at("settings").at("tau")}, {"far", "centroid"}};
    const json expected = {{{"layer", 0},
                            {"mode", "dense"},
                            {"reuse", false},
                            {"joint", false},
                            {"window", nullptr},
                            {"block", nullptr},
                            {"heads", {dense, dense}}},
                           {{"layer", 1},
                            {"mode", "keys"},
                            {"reuse", false},
                            {"joint", false},
                            {"window", 8},
                            {"block", 8},
                            {"heads", {clusters, clusters}}}};
    EXPECT_EQ(run.at("plan"), json({{"layers", expected}, {"linear", json::array()}}));
  }
}

TEST_P(EvalAttention, TheBaseIsWhatDenseMeasures) {
  const json base = metrics(kKeys);
  const json dense = metrics({});
  // Dense alone rounds the logarithm of its sum to float32, 2^-20 below 16.
  EXPECT_NEAR(std::log(base.at("ppl_base").get<double>()), dense.at("loss").get<double>(), 0x1p-20);
}

TEST_P(EvalAttention, PrintsARunningLineAndASummary) {
  const RunResult result = eval(joined(kKeys, {"--tau", "0.9"}));
  EXPECT_EQ(result.err, "") << result;
  expect_all_in({"window", "PPL(base)", "ln(PPL/PPL(base))", "KL divergence", "Δp RMS",
                 "Same top p", "Mean    KL", "Maximum KL", "99.9%   KL", "Median  KL", "Keys read",
                 "Clusters / tokens", "Cache bytes", "300 tokens in 8 windows of 40",
                 "attention keys, cascade-cover in normed space, tau 0.9"},
                result);
  const RunResult quiet = eval(joined(kKeys, {"--quiet"}));
  EXPECT_FALSE(quiet.out.starts_with("window")) << quiet;
}

TEST_P(EvalAttention, AListGivesARunEach) {
  const RunResult result =
      eval(joined(kKeys, {"--tau", "0,0.5,0.9", "--far", "centroid,own", "--windows", "2"}));
  expect_all_in({"KL centroid tau 0.5", "KL own tau 0.9", "clusters/T", "keys read"}, result);
  const json results = read_results(results_);
  ASSERT_EQ(results.at("runs").size(), 6u);
  EXPECT_FALSE(results.contains("metrics"));
  EXPECT_FALSE(results.at("settings").contains("tau"));
  for (size_t i = 0; i < 6; ++i) {
    const json& run = results.at("runs")[i];
    EXPECT_EQ(run.at("settings").at("far"), i < 3 ? "centroid" : "own");
    EXPECT_EQ(run.at("settings").at("tau"), (std::array{0.0, 0.5, 0.9}[i % 3]));
    EXPECT_EQ(run.at("metrics").at("ppl_base"), results.at("runs")[0].at("metrics").at("ppl_base"));
    // The same figures as alone.
    const json& set = run.at("settings");
    EXPECT_EQ(metrics(joined(kKeys, {"--tau", set.at("tau").dump(), "--far",
                                     set.at("far").get<std::string>(), "--windows", "2"}))
                  .at("kl_mean"),
              run.at("metrics").at("kl_mean"));
  }
}

TEST_P(EvalAttention, PaperSaysEveryTimeThatItLeaksTheFuture) {
  for (const Args& more : {Args{}, Args{"--quiet"}}) {
    const RunResult result = eval(joined({"--attention", "paper,copy", "--tau", "0.5"}, more));
    EXPECT_NE(result.err.find("attention paper shows a causal model tokens that are still to come"),
              std::string::npos)
        << result;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result;
  }
  const json settings = read_results(results_).at("runs")[0].at("settings");
  EXPECT_EQ(settings.at("select"), "cascade-paper");
  EXPECT_EQ(settings.at("space"), "residual");
  EXPECT_EQ(settings.at("sinks"), 0);
  EXPECT_EQ(eval({"--attention", "copy"}).err, "");
}

TEST_P(EvalAttention, LayersBeforeTheFirstStayDense) {
  const json all = metrics(joined(kKeys, {"--tau", "0.9"}));
  const json second = metrics(joined(kKeys, {"--tau", "0.9", "--from-layer", "1"}));
  // One of two layers.
  EXPECT_GT(second.at("keys_read_fraction").get<double>(),
            all.at("keys_read_fraction").get<double>());
  EXPECT_GT(second.at("clusters_fraction").get<double>(), 0.5);
}

TEST_P(EvalAttention, PredictComparesGeneration) {
  const RunResult result = eval(joined(kKeys, {"--tau", "0", "-n", "20"}));
  expect_all_in({"Generated alike: 20.0 tokens, ", " characters, mean of 4 continuations"}, result);
  const json metrics = read_results(results_).at("metrics");
  EXPECT_EQ(metrics.at("generation_match_tokens"), 20);
  EXPECT_GE(metrics.at("generation_match_characters"), 20);  // of one or more each
}

INSTANTIATE_TEST_SUITE_P(Devices, EvalAttention, testing::Values("cpu", "reference"),
                         [](const auto& test) { return std::string(test.param); });

class GenerateAttention : public testing::Test {
 protected:
  RunResult generate(const Args& more) const {
    return run_ok(joined({"generate", "-m", folder_.path(), "-p", "hello there", "-n", "20",
                          "--ignore-eos", "--json", results_},
                         more));
  }

  const ModelFolder folder_;
  const std::string results_ = folder_.file("results.json");
};

TEST_F(GenerateAttention, KeysThatMergeNothingGiveTheSameText) {
  const RunResult dense = generate({});
  EXPECT_NE(dense.err.find("attention dense\n"), std::string::npos) << dense;
  EXPECT_EQ(read_results(results_).at("settings").at("attention"), "dense");
  const RunResult keys = generate(joined(kKeys, {"--tau", "0"}));
  EXPECT_EQ(keys.out, dense.out);
  EXPECT_NE(keys.err.find("attention keys, cascade-cover in normed space, tau 0,"),
            std::string::npos)
      << keys;
  const json settings = read_results(results_).at("settings");
  EXPECT_EQ(settings.at("attention"), "keys");
  EXPECT_EQ(settings.at("tau"), 0.0);
  EXPECT_EQ(settings.at("window"), 8);
}

TEST_F(GenerateAttention, ASmallWindowIsItsOwnBlock) {
  generate({"--attention", "keys", "--window", "8"});
  const json settings = read_results(results_).at("settings");
  EXPECT_EQ(settings.at("window"), 8);
  EXPECT_EQ(settings.at("block"), 8);
}

TEST_F(GenerateAttention, WritesWhatTheCacheWeighs) {
  generate({});
  const json dense = read_results(results_).at("runs")[0].at("cache");
  EXPECT_EQ(dense.at("exact_bytes"), dense.at("dense_bytes"));
  generate({"--attention", "copy"});
  const json copy = read_results(results_).at("runs")[0].at("cache");
  EXPECT_EQ(copy.at("dense_bytes"), dense.at("dense_bytes"));
  EXPECT_GT(copy.at("outputs_bytes").get<int64_t>(), 0);
}

TEST_F(GenerateAttention, DevicesAgreeOnTheText) {
  for (const char* mode : {"keys", "copy"}) {
    const Args args{"--attention", mode, "--tau", "0.5"};
    EXPECT_EQ(generate(args).out, generate(joined(args, {"--device", "reference"})).out) << mode;
  }
}

class RefusesAttention : public testing::TestWithParam<Refusal> {};

TEST_P(RefusesAttention, WithOneLineAndAHint) { expect_refused(GetParam()); }

Refusal bad_eval(std::string name, const Args& more, std::vector<std::string> fragments,
                 int code = 2) {
  return {.name = std::move(name),
          .build = [more](ModelFolder& folder) { return eval_of(folder, more); },
          .fragments = std::move(fragments),
          .code = code};
}

Refusal bad_generate(std::string name, const Args& more, std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [more](ModelFolder& folder) {
                return generate_of(folder, joined({"-p", "ab"}, more));
              },
          .fragments = std::move(fragments),
          .code = 2};
}

std::vector<Refusal> attention_refusals() {
  return {
      bad_eval("UnknownMode", {"--attention", "sparse"}, {"--attention", "sparse", "keys"}),
      bad_eval("UnknownRule", {"--attention", "keys", "--select", "best"}, {"--select", "best"}),
      bad_eval("UnknownSpace", {"--attention", "keys", "--space", "key"}, {"--space", "key"}),
      bad_eval("UnknownFar", {"--attention", "keys", "--far", "mean"}, {"--far", "mean"}),
      bad_eval("TauOfOne", {"--attention", "keys", "--tau", "1"}, {"--tau", "0 to below 1"}),
      bad_eval("TauOfAListIsNegative", {"--attention", "keys", "--tau", "0.3,-0.1"},
               {"--tau", "-0.1"}),
      bad_eval("TauIsNan", {"--attention", "keys", "--tau", "nan"}, {"--tau", "nan"}),
      bad_eval("TauIsText", {"--attention", "keys", "--tau", "0.3;0.5"}, {"--tau", "0.3;0.5"}),
      bad_eval("TauIsAnotherWord", {"--attention", "keys", "--tau", "often"},
               {"--tau", "often", "auto"}),
      bad_eval("AutoWithASmallWindow", {"--attention", "keys", "--tau", "auto", "--window", "64"},
               {"tau auto", "256", "window 64", "block 64"}, 1),
      bad_eval("AutoUnderCopy", {"--attention", "copy", "--tau", "0.3,auto"},
               {"tau auto", "copy", "keys"}, 1),
      bad_eval("AutoWithoutAMode", {"--tau", "auto"}, {"--tau", "dense"}),
      bad_eval("TauWithoutAMode", {"--tau", "0.3"}, {"--tau", "dense"}),
      bad_eval("WindowWithoutAMode", {"--attention", "dense", "--window", "64"},
               {"--window", "dense"}),
      bad_eval("DenseInAList", {"--attention", "dense,keys"}, {"dense", "compared with"}),
      bad_eval("FarWithoutKeys", {"--attention", "copy", "--far", "own"}, {"--far", "keys"}),
      bad_eval("NegativeSinks", {"--attention", "keys", "--sinks", "-1"}, {"--sinks", "-1"}),
      bad_eval("BlockOfZero", {"--attention", "keys", "--block", "0"}, {"--block", "0"}),
      bad_eval("NegativeOutlierRatio", {"--attention", "keys", "--outlier-ratio", "-2"},
               {"--outlier-ratio", "-2"}),
      bad_eval("PredictWithoutAMode", {"--predict", "4"}, {"--predict", "dense"}),
      bad_eval("WindowIsNoMultiple", {"--attention", "keys", "--window", "12", "--block", "8"},
               {"window 12", "block 8", "--window 12 --block 4"}, 1),
      bad_eval("LayerBeyondTheLast", {"--attention", "keys", "--from-layer", "2"},
               {"no layer 2", "0 to 1"}, 1),
      bad_eval("KeysByThePapersCascade", {"--attention", "keys", "--select", "cascade-paper"},
               {"cascade-paper", "keys"}, 1),
      bad_eval("PredictUnderPaper", {"--attention", "paper", "--predict", "4"},
               {"paper", "cannot generate"}, 1),
      bad_eval("PredictBeyondTheContext", {"--attention", "keys", "--predict", "21"},
               {"21 tokens", "context of 40", "--predict 20 or less"}, 1),
      bad_eval("PredictInAContextOfOne", {"--attention", "keys", "-c", "1", "--predict", "1"},
               {"1 tokens", "context of 1", "--context 2 or more"}, 1),
      bad_generate("GenerateUnderPaper", {"--attention", "paper"}, {"paper", "cannot generate"}),
      bad_generate("GenerateWithAList", {"--attention", "keys", "--tau", "0.3,0.5"},
                   {"--tau", "0.3,0.5"}),
      bad_generate("GenerateWithTauAlone", {"--tau", "0.3"}, {"--tau", "dense"}),
      Refusal{.name = "EvalOfAnEncoderThatHasNoMask",
              .build =
                  [](ModelFolder& folder) {
                    return eval_of(folder, {"--attention", "keys"});
                  },
              .fragments = {"no mask token", "[MASK]"},
              .golden = "bert"},
  };
}

INSTANTIATE_TEST_SUITE_P(Flags, RefusesAttention, testing::ValuesIn(attention_refusals()), name_of);

}  // namespace
}  // namespace sluice::impl
