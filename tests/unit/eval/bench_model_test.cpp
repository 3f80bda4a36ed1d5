// What a bench measures and in which order; how long it takes is nobody's business here.

#include "eval/runs/bench_model.h"

#include <gtest/gtest.h>

#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

class BenchModel : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kContext = 24;

  Model load_golden(const std::string& name) const {
    GoldenModel golden = golden_model(name);
    golden.context = kContext;
    return load(golden, {GetParam(), DType::kF32});
  }
  static BenchCandidate candidate(const Model& model, AttentionMode mode, double tau) {
    UniformAttention choice;
    choice.mode = mode;
    choice.tau = tau;
    if (mode == AttentionMode::kKeys) choice.window = choice.block = 4;
    return {.label = std::string(mode_name(mode)),
            .mode = std::string(mode_name(mode)),
            .settings = {{"attention", mode_name(mode)}, {"tau", tau}},
            .plan = {.attention = uniform_plan(choice, model.plan_shape())}};
  }
  BenchResult bench(const BenchOptions& options,
                    const std::vector<std::pair<AttentionMode, double>>& modes) {
    std::vector<BenchCandidate> candidates;
    for (const auto& [mode, tau] : modes) candidates.push_back(candidate(model, mode, tau));
    return bench_model(model, random_tokens(model.spec(), kContext), candidates, options, {});
  }

  Model model = load_golden("models/llama");
};

std::vector<std::string> names_of(const BenchResult& result) {
  std::vector<std::string> names;
  for (const BenchCase& found : result.cases)
    names.push_back(found.name + " " + result.candidates[found.candidate].label);
  return names;
}

TEST_P(BenchModel, HasEveryLengthOfEveryCandidate) {
  const BenchResult result = bench({.lengths = {8, 16}, .n_predict = 4, .repeat = 3},
                                   {{AttentionMode::kKeys, 0.9}, {AttentionMode::kCopy, 0}});
  const std::vector<std::string> expected = {
      "pp8 dense",  "pp8 keys",  "pp8 copy",  "tg@8 dense",  "tg@8 keys",  "tg@8 copy",
      "pp16 dense", "pp16 keys", "pp16 copy", "tg@16 dense", "tg@16 keys", "tg@16 copy"};
  EXPECT_EQ(names_of(result), expected);
  EXPECT_TRUE(result.left_out.empty());
  for (const BenchCase& found : result.cases) {
    SCOPED_TRACE(found.name);
    const bool prefill = found.name.starts_with("pp");
    EXPECT_EQ(found.n_tokens, found.name.ends_with("16") ? 16 : 8);
    EXPECT_EQ(found.tokens_per_sample, prefill ? found.n_tokens : 1);
    ASSERT_EQ(found.samples.size(), 3u);
    EXPECT_LE(found.speedup.low, found.speedup.middle);
    EXPECT_LE(found.speedup.middle, found.speedup.high);
    EXPECT_GT(found.tokens_per_s(), 0);
    EXPECT_EQ(found.middle().total, median(found.totals_ms()));
  }
}

TEST_P(BenchModel, PartsAreInsideTheTotalAndGoWhereTheyBelong) {
  const BenchResult result = bench({.lengths = {16}, .n_predict = 4, .repeat = 2},
                                   {{AttentionMode::kKeys, 0.9}, {AttentionMode::kCopy, 0.9}});
  for (const BenchCase& found : result.cases) {
    SCOPED_TRACE(found.name + " " + result.candidates[found.candidate].label);
    for (const BenchSample& sample : found.samples) {
      EXPECT_GT(sample.attend, 0);
      EXPECT_GT(sample.rest(), 0);  // projections and MLP at least
      EXPECT_LT(sample.select + sample.attend, sample.total);
      EXPECT_EQ(sample.select > 0, found.candidate > 0);
    }
  }
}

TEST_P(BenchModel, DenseIsItsOwnMeasure) {
  const BenchResult result = bench({.lengths = {8}, .n_predict = 2, .repeat = 3}, {});
  EXPECT_EQ(names_of(result), std::vector<std::string>({"pp8 dense", "tg@8 dense"}));
  for (const BenchCase& found : result.cases) {
    EXPECT_EQ(found.speedup.low, 1);
    EXPECT_EQ(found.speedup.middle, 1);
    EXPECT_EQ(found.speedup.high, 1);
    EXPECT_FALSE(found.reps_fraction.has_value());
  }
}

TEST_P(BenchModel, RepresentativesAreThoseOfThePrefill) {
  const BenchResult result = bench({.lengths = {16}, .n_predict = 8, .repeat = 1},
                                   {{AttentionMode::kKeys, 0}, {AttentionMode::kKeys, 0.99}});
  KvCache cache = model.make_cache(1, 16, result.candidates[2].plan.attention);
  model.forward(random_tokens(model.spec(), 16), cache);
  double sum = 0;
  for (int64_t layer = 0; layer < model.spec().n_layers; ++layer)
    sum += static_cast<double>(cache.selector(layer)->sets()[0].n_clusters) / 16;
  const double expected = sum / static_cast<double>(model.spec().n_layers);
  EXPECT_LT(expected, 1);  // something merged
  for (const BenchCase& found : result.cases) {
    if (found.candidate == 0) continue;
    EXPECT_EQ(found.reps_fraction, found.candidate == 1 ? 1.0 : expected) << found.name;
  }
}

// Bases of the first axes.
Bases axis_bases(const ModelSpec& spec, int64_t rank) {
  Bases bases;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    for (const BasisInput input : kLinearInputs) {
      Basis& basis = bases.list.emplace_back();
      basis.layer = layer;
      basis.input = input;
      basis.d = spec.row_widths().of(input);
      basis.rank = rank;
      basis.vectors.assign(static_cast<size_t>(rank * basis.d), 0);
      for (int64_t i = 0; i < rank; ++i) basis.vectors[static_cast<size_t>(i * basis.d + i)] = 1;
      basis.spectrum.assign(static_cast<size_t>(rank), 1.0 / static_cast<double>(rank));
    }
  return bases;
}

// Sums over the gates of a cache.
struct Counted {
  double fast = 0, tokens = 0, elements = 0, dense = 0;

  Counted(const KvCache& cache, const ModelSpec& spec) {
    for (int64_t layer = 0; layer < spec.n_layers; ++layer)
      for (const BasisInput input : kLinearInputs) {
        const LinearCounts& counts = cache.gate(layer, input)->counts();
        fast += static_cast<double>(counts.n_fast);
        tokens += static_cast<double>(counts.n_tokens);
        elements += counts.elements;
        dense += counts.dense_elements;
      }
  }
};

TEST_P(BenchModel, LinearSharesAreOfTheTokensOfTheCase) {
  constexpr int64_t kPrefill = 12, kDecode = 6;
  const Bases bases = axis_bases(model.spec(), 8);
  const auto tokens = random_tokens(model.spec(), kContext);
  for (const UniformLinear& choice :
       {UniformLinear{.kind = LinearKind::kGsi, .rank = 8, .epsilon = 0.85},
        UniformLinear{.kind = LinearKind::kGraded, .epsilon = 0.3}}) {
    SCOPED_TRACE(linear_name(choice.kind));
    BenchCandidate candidate;
    candidate.plan = uniform_plan({.linear = choice}, model.plan_shape(), model.linear_shape());
    model.prepare_linear(candidate.plan.linear, &bases);
    const BenchResult result = bench_model(
        model, tokens, {candidate}, {.lengths = {kPrefill}, .n_predict = kDecode, .repeat = 2}, {});
    ASSERT_EQ(result.cases.size(), 4u);
    const BenchCase &prefill = result.cases[1], &decode = result.cases[3];

    KvCache cache = model.make_cache(1, kContext, candidate.plan.attention, candidate.plan.linear);
    model.forward({tokens.data(), kPrefill}, cache);
    const Counted before(cache, model.spec());
    for (int64_t i = 0; i < kDecode; ++i) model.forward({&tokens[kPrefill + i], 1}, cache);
    const Counted after(cache, model.spec());
    EXPECT_FALSE(prefill.weight_bytes_fraction.has_value());
    ASSERT_TRUE(decode.weight_bytes_fraction.has_value());
    EXPECT_NEAR(*decode.weight_bytes_fraction,
                (after.elements - before.elements) / (after.dense - before.dense), 1e-12);
    EXPECT_GT(std::abs(*decode.weight_bytes_fraction - after.elements / after.dense), 1e-6);
    EXPECT_EQ(prefill.fast_path_fraction.has_value(), choice.kind == LinearKind::kGsi);
    if (choice.kind != LinearKind::kGsi) continue;
    EXPECT_DOUBLE_EQ(*prefill.fast_path_fraction, before.fast / before.tokens);
    EXPECT_DOUBLE_EQ(*decode.fast_path_fraction,
                     (after.fast - before.fast) / (after.tokens - before.tokens));
    EXPECT_NE(decode.fast_path_fraction, prefill.fast_path_fraction);
  }
}

TEST_P(BenchModel, ACandidateThatDoesNotFollowItsPlanRunsDense) {
  BenchCandidate keys = candidate(model, AttentionMode::kKeys, 0.9);
  keys.label = "plan";
  std::vector<std::pair<int64_t, int64_t>> asked;
  keys.follows = [&](int64_t n_tokens, int64_t n_predict) {
    asked.emplace_back(n_tokens, n_predict);
    return n_tokens >= 16;
  };
  const BenchResult result = bench_model(model, random_tokens(model.spec(), kContext), {keys},
                                         {.lengths = {8, 16, 22}, .n_predict = 4, .repeat = 1}, {});
  // Once for each length; after 22 tokens nothing is decoded.
  EXPECT_EQ(asked, (std::vector<std::pair<int64_t, int64_t>>{{8, 4}, {16, 4}, {22, 0}}));
  const auto checkpoint = open_checkpoint(golden_model("models/llama").path());
  const nlohmann::json cases = bench_results(
      {.command_line = "", .checkpoint = *checkpoint, .model = model}, result)["cases"];
  ASSERT_EQ(cases.size(), 10u);
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].dump());
    const BenchCase& found = result.cases[i];
    const bool is_plan = found.candidate == 1, dense = is_plan && found.n_tokens == 8;
    EXPECT_EQ(found.ran_dense, dense);
    EXPECT_EQ(found.reps_fraction.has_value(), is_plan && !dense);
    EXPECT_EQ(cases[i].at("label"), !is_plan ? "dense" : dense ? "plan (dense)" : "plan");
    EXPECT_EQ(cases[i].at("mode"), is_plan && !dense ? "keys" : "dense");
    const nlohmann::json& settings = cases[i].at("settings");
    EXPECT_EQ(settings.at("attention"), cases[i].at("mode"));
    EXPECT_EQ(settings.value("ran", ""), !is_plan ? "" : dense ? "dense" : "plan");
  }
}

TEST_P(BenchModel, CandidatesAreInterleaved) {
  std::vector<std::string> seen;
  double last = -1;
  const auto progress = [&](double done, const std::string& now) {
    EXPECT_GT(done, last);
    EXPECT_LT(done, 1);
    last = done;
    seen.push_back(now);
  };
  bench_model(model, random_tokens(model.spec(), kContext),
              {candidate(model, AttentionMode::kKeys, 0.5)},
              {.lengths = {4, 8}, .n_predict = 1, .repeat = 1}, progress);
  const std::vector<std::string> expected = {
      "4 tokens, dense", "4 tokens, keys", "4 tokens, dense", "4 tokens, keys",
      "8 tokens, dense", "8 tokens, keys", "8 tokens, dense", "8 tokens, keys"};
  EXPECT_EQ(seen, expected);
}

TEST_P(BenchModel, DecodingThatCannotBeIsLeftOutWithAWord) {
  const BenchOptions options{.lengths = {20, 22}, .n_predict = 4, .repeat = 1};
  const BenchResult beyond = bench(options, {});
  EXPECT_EQ(names_of(beyond),
            std::vector<std::string>({"pp20 dense", "tg@20 dense", "pp22 dense"}));
  EXPECT_EQ(beyond.left_out, std::vector<std::string>({"tg@22 left out: 4 more tokens do not fit "
                                                       "the context of 24"}));

  const BenchResult text = bench_model(model, random_tokens(model.spec(), 23), {},
                                       {.lengths = {20}, .n_predict = 4, .repeat = 1}, {});
  EXPECT_EQ(names_of(text), std::vector<std::string>({"pp20 dense"}));
  EXPECT_EQ(text.left_out, std::vector<std::string>({"tg@20 left out: the text has 23 tokens, 4 "
                                                     "more are not there"}));

  const BenchResult paper =
      bench({.lengths = {8, 16}, .n_predict = 4, .repeat = 1}, {{AttentionMode::kPaper, 0.5}});
  EXPECT_EQ(names_of(paper), std::vector<std::string>({"pp8 dense", "pp8 paper", "tg@8 dense",
                                                       "pp16 dense", "pp16 paper", "tg@16 dense"}));
  EXPECT_EQ(paper.left_out, std::vector<std::string>(
                                {"tg left out: paper looks at later tokens and cannot decode"}));

  EXPECT_TRUE(bench({.lengths = {24}, .n_predict = 0, .repeat = 1}, {}).left_out.empty());
}

TEST_P(BenchModel, AnEncoderIsReadWholeAndDoesNotDecode) {
  Model encoder = load_golden("models/bert");
  const BenchResult result = bench_model(encoder, random_tokens(encoder.spec(), kContext),
                                         {candidate(encoder, AttentionMode::kKeys, 0.5)},
                                         {.lengths = {8, 24}, .n_predict = 4, .repeat = 1}, {});
  EXPECT_EQ(names_of(result),
            std::vector<std::string>({"pp8 dense", "pp8 keys", "pp24 dense", "pp24 keys"}));
  EXPECT_EQ(result.left_out,
            std::vector<std::string>({"tg left out: bert is an encoder and does not decode"}));
}

TEST_P(BenchModel, LengthsBeyondContextOrTextAreRefused) {
  expect_error([&] { bench({.lengths = {8, 25}}, {}); }, {"25 tokens", "context of 24"});
  expect_error(
      [&] { bench_model(model, random_tokens(model.spec(), 9), {}, {.lengths = {10}}, {}); },
      {"9 tokens", "10 are asked for"});
}

TEST_P(BenchModel, ResultsHaveTheKeysOfTheDocument) {
  const auto checkpoint = open_checkpoint(golden_model("models/llama").path());
  const BenchResult result =
      bench({.lengths = {8}, .n_predict = 2, .repeat = 3}, {{AttentionMode::kKeys, 0.5}});
  const nlohmann::json results = bench_results(
      {.command_line = "sluice bench", .checkpoint = *checkpoint, .model = model}, result);
  EXPECT_EQ(results.at("command"), "bench");
  EXPECT_TRUE(results.at("text").is_null());
  EXPECT_EQ(results.at("settings"),
            (nlohmann::json{{"context", {8}}, {"predict", 2}, {"repeat", 3}}));
  ASSERT_EQ(results.at("cases").size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const nlohmann::json& found = results.at("cases")[i];
    EXPECT_EQ(found.at("name"), i < 2 ? "pp8" : "tg@8");
    EXPECT_EQ(found.at("n_tokens"), 8);
    EXPECT_EQ(found.at("mode"), i % 2 ? "keys" : "dense");
    EXPECT_EQ(found.at("linear"), "dense");
    EXPECT_EQ(found.at("settings").at("attention"), found.at("mode"));
    EXPECT_EQ(found.at("n_reps_fraction").is_null(), i % 2 == 0);
    EXPECT_EQ(found.at("samples_ms").size(), 3u);
    for (const char* key : {"tokens_per_s", "speedup_vs_dense", "speedup_low", "speedup_high"})
      EXPECT_GT(found.at(key).get<double>(), 0) << key;
    double sum = 0;
    for (const char* part : {"select", "attend", "linear", "rest"})
      sum += found.at("parts_ms").at(part).get<double>();
    EXPECT_DOUBLE_EQ(sum, found.at("median_ms").get<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BenchModel, testing::Values("reference", "cpu"),
                         [](const auto& test) { return std::string(test.param); });

TEST(BenchCase, TheMiddleIsASampleOrTheMeanOfTwo) {
  BenchCase found;
  found.tokens_per_sample = 12;
  found.samples = {{9, 1, 2}, {3, 0.5, 1}, {6, 2, 3}};
  EXPECT_EQ(found.middle().total, 6);
  EXPECT_EQ(found.middle().select, 2);
  EXPECT_EQ(found.middle().attend, 3);
  EXPECT_EQ(found.middle().rest(), 1);
  EXPECT_EQ(found.tokens_per_s(), 2000);
  found.samples.push_back({4, 1, 1});
  EXPECT_EQ(found.middle().total, 5);  // of 4 and 6
  EXPECT_EQ(found.middle().select, 1.5);
  EXPECT_EQ(found.middle().attend, 2);
}

TEST(RandomTokens, AreTheSameEveryTimeAndInTheVocabulary) {
  ModelSpec spec;
  spec.vocab = 10;
  const auto tokens = random_tokens(spec, 200);
  EXPECT_EQ(tokens, random_tokens(spec, 200));
  EXPECT_EQ(*std::min_element(tokens.begin(), tokens.end()), 0);
  EXPECT_EQ(*std::max_element(tokens.begin(), tokens.end()), 9);
}

}  // namespace
}  // namespace sluice::impl::test
