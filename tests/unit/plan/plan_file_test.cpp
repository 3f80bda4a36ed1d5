// plan.json: what is written comes back, and whatever else a file holds is refused in one line that
// names the place.

#include "plan/plan_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <random>

#include "fuzz/plan_harness.h"
#include "unit/json_mutation.h"
#include "unit/plan/sample_plan.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

using nlohmann::json;

PlanFile parsed(const json& file) { return parse_plan_file(file.dump(), "plan.json"); }

PlanFile dense_plan() {
  PlanFile file;
  file.model = {.sha256 = std::string(64, '0'), .family = "llama", .n_layers = 2, .n_kv_heads = 1};
  file.context = 1;
  file.plan.attention.layers.resize(2);
  return file;
}

// ---- what is written comes back ----

TEST(PlanFile, ComesBackAsItWas) {
  EXPECT_EQ(parsed(plan_file_json(sample_plan())), sample_plan());
  EXPECT_EQ(parsed(plan_file_json(dense_plan())), dense_plan());
}

TEST(PlanFile, ComesBackFromDisk) {
  const TempDir folder;
  const auto path = folder.path() / "plan.json";
  write_plan_file(sample_plan(), path);
  EXPECT_EQ(read_plan_file(path), sample_plan());
}

TEST(PlanFile, UniformPlansComeBack) {
  const PlanShape shape = {.n_layers = 3, .n_kv_heads = 2, .causal = true, .context = 100};
  for (const AttentionMode mode :
       {AttentionMode::kDense, AttentionMode::kPaper, AttentionMode::kCopy, AttentionMode::kKeys})
    for (const double tau : {0.0, 0.1 + 0.2, 0.999}) {
      PlanFile file = dense_plan();
      file.model.n_layers = 3;
      file.model.n_kv_heads = 2;
      UniformAttention choice;
      choice.mode = mode;
      choice.tau = tau;
      choice.from_layer = 1;
      file.plan.attention = uniform_plan(choice, shape);
      EXPECT_EQ(parsed(plan_file_json(file)), file) << mode_name(mode) << " " << tau;
    }
}

TEST(PlanFile, RefinedHeadsComeBackWithTheirDeltas) {
  PlanFile file = dense_plan();
  file.model.n_kv_heads = 4;
  UniformAttention choice;
  choice.mode = AttentionMode::kRefine;
  file.plan.attention.layers[1] = layer_plan(
      choice, {.n_layers = 2, .n_kv_heads = 4, .causal = true, .windows = {}, .context = 100});
  std::vector<HeadPlan>& heads = file.plan.attention.layers[1].heads;
  heads[0].delta = 0.003;
  heads[1].delta = std::numeric_limits<double>::infinity();  // means only
  heads[2] = {.kind = HeadKind::kWindow};
  heads[3] = {.kind = HeadKind::kDense};
  const json written = plan_file_json(file);
  EXPECT_TRUE(written.at("layers")[1].at("heads")[1].at("delta").is_null());
  EXPECT_EQ(parsed(written), file);
  json without = written;
  without["layers"][1]["heads"][1].erase("delta");
  EXPECT_THROW(parsed(without), Error);
}

TEST(PlanFile, ADenseLayerIsItsNumberAlone) {
  EXPECT_EQ(plan_file_json(dense_plan())["layers"], json({{{"layer", 0}}, {{"layer", 1}}}));
  PlanFile without_layers = dense_plan();
  without_layers.plan = {};
  EXPECT_EQ(plan_file_json(without_layers), plan_file_json(dense_plan()));
}

TEST(PlanFile, WhatIsLeftOutHasTheDefaultsOfItsMode) {
  json file = plan_file_json(dense_plan());
  for (const char* key : {"objective", "contract", "auto", "measured", "bases", "provenance"})
    file.erase(key);
  EXPECT_EQ(parsed(file), dense_plan());
  for (const AttentionMode mode :
       {AttentionMode::kPaper, AttentionMode::kCopy, AttentionMode::kKeys}) {
    file["layers"][1] = {
        {"layer", 1}, {"mode", mode_name(mode)}, {"heads", {{{"kind", "clusters"}, {"tau", 0.3}}}}};
    UniformAttention choice;
    choice.mode = mode;
    EXPECT_EQ(parsed(file).plan.attention.layers[1],
              layer_plan(choice, {.n_layers = 2, .n_kv_heads = 1, .causal = true, .context = 1}));
  }
}

TEST(PlanFile, BasesAreFoundFromThePlansFolder) {
  const PlanBases beside = {.path = "b/bases.safetensors", .text_sha256 = ""};
  EXPECT_EQ(bases_path(beside, "plans/plan.json"), "plans/b/bases.safetensors");
  EXPECT_EQ(bases_path(beside, "plan.json"), "b/bases.safetensors");
  EXPECT_EQ(bases_path({.path = "/b", .text_sha256 = ""}, "plans/plan.json"), "/b");
}

TEST(PlanFile, ObjectivesAreFoundByTheirNamesAlone) {
  for (const PlanObjective objective :
       {PlanObjective::kPrefill, PlanObjective::kDecode, PlanObjective::kMemory})
    EXPECT_EQ(objective_of(objective_name(objective)), objective);
  EXPECT_FALSE(objective_of("speed"));
}

// ---- refusals ----

struct BadValue {
  std::string place;  // as a JSON pointer
  json value;
  std::vector<std::string> fragments;
};

TEST(PlanFileRefusals, NameTheirPlace) {
  const std::vector<BadValue> all = {
      {"/format", "plan", {"is not a plan of sluice"}},
      {"/version", 0, {"version: 0 is outside 1"}},
      {"/version", "1", {"version: is \"1\", expected an integer"}},
      {"/version", 2, {"version: 2 was made by a newer sluice"}},
      {"/tau", 0.3, {"tau: is no field of a plan"}},
      {"/model", 3, {"model: is 3, expected an object"}},
      {"/model/vocab", 3, {"model.vocab: is no field"}},
      {"/model/sha256", nullptr, {"model: has no `sha256`"}},
      {"/model/sha256", "abc", {"model.sha256: \"abc\" is no sha256"}},
      {"/model/sha256", std::string(64, 'A'), {"model.sha256:", "is no sha256"}},
      {"/model/family", "", {"model.family: is 0 bytes"}},
      {"/model/family", std::string(5000, 'x'), {"model.family: is 5000 bytes"}},
      {"/model/n_layers", 0, {"model.n_layers: 0 is outside 1 … 1024"}},
      {"/model/n_layers", 4, {"layers: has 5 elements, model.n_layers is 4"}},
      {"/model/n_layers", 5.5, {"model.n_layers: is 5.5, expected an integer"}},
      {"/model/n_kv_heads", 4, {"layers[1].heads: has 3 elements, model.n_kv_heads is 4"}},
      {"/model/n_kv_heads", UINT64_MAX, {"model.n_kv_heads: 18446744073709551615 is outside"}},
      {"/context", 0, {"context: 0 is outside"}},
      {"/context", nullptr, {"plan.json: has no `context`"}},
      {"/objective",
       "speed",
       {"objective: is \"speed\", expected prefill, decode, memory, reads or decode-reads"}},
      {"/objective", 1, {"objective: is 1, expected prefill"}},
      {"/contract", json::array(), {"contract: is an array, expected an object"}},
      {"/contract/max_kl", -0.1, {"contract.max_kl: -0.1 is below 0"}},
      {"/contract/max_kl_p99", -1, {"contract.max_kl_p99: -1 is below 0"}},
      {"/contract/max_kl_p999", "1", {"contract.max_kl_p999: is \"1\", expected a number"}},
      {"/contract/max_ppl_ratio", 0.9, {"contract.max_ppl_ratio: 0.9 is below 1"}},
      {"/contract/max_loss", 1, {"contract.max_loss: is no field"}},
      {"/auto/prefill_from", -1, {"auto.prefill_from: -1 is outside 0"}},
      {"/auto/decode_from", 0.5, {"auto.decode_from: is 0.5, expected an integer"}},
      {"/auto/from", 1, {"auto.from: is no field"}},
      {"/measured", 2, {"measured: is 2, expected an object"}},
      {"/measured/dtype", "f16", {"measured.dtype: is \"f16\", expected f32 or bf16"}},
      {"/measured/device", nullptr, {"measured: has no `device`"}},
      {"/measured/device", std::string(5000, 'x'), {"measured.device: is 5000 bytes"}},
      {"/measured/threads", 0, {"measured.threads: 0 is outside 1"}},
      {"/measured/cores", 2, {"measured.cores: is no field"}},
      {"/bases/path", "", {"bases.path: is 0 bytes"}},
      {"/bases/text_sha256", "x", {"bases.text_sha256: \"x\" is no sha256"}},
      {"/bases/rank", 3, {"bases.rank: is no field"}},
      {"/bases", nullptr, {"layers[1].joint: needs bases"}},
      {"/provenance", "me", {"provenance: \"me\" is not an object"}},
      {"/layers", nullptr, {"plan.json: has no `layers`"}},
      {"/layers", json::object(), {"layers: is an object, expected an array"}},
      {"/layers/0", 3, {"layers[0]: is 3, expected an object"}},
      {"/layers/0/window", 128, {"layers[0].window: has no meaning in a dense layer"}},
      {"/layers/0/heads", json::array(), {"layers[0].heads: has no meaning in a dense layer"}},
      {"/layers/1/layer", 2, {"layers[1].layer: 2 is out of order, expected 1"}},
      {"/layers/1/layer", nullptr, {"layers[1]: has no `layer`"}},
      {"/layers/1/head", 2, {"layers[1].head: is no field"}},
      {"/layers/1/mode", "fast", {"layers[1].mode: is \"fast\", expected dense, refine, keys"}},
      {"/layers/1/select", "best", {"layers[1].select: is \"best\", expected independent"}},
      {"/layers/1/select", "fixed", {"layers[1].select: \"fixed\" is no rule of a plan"}},
      {"/layers/1/select", "cascade-paper", {"layers[1]: cascade-paper does not go with"}},
      {"/layers/1/space", "key", {"layers[1].space: is \"key\", expected residual or normed"}},
      {"/layers/1/reuse", 1, {"layers[1].reuse: is 1, expected true or false"}},
      {"/layers/1/reuse", true, {"layers[1]: the plan's first selected layer reuses"}},
      {"/layers/1/joint", "no", {"layers[1].joint: is \"no\", expected true or false"}},
      {"/layers/1/sinks", -1, {"layers[1].sinks: -1 is outside 0"}},
      {"/layers/1/outlier_ratio", -1, {"layers[1].outlier_ratio: -1 is below 0"}},
      {"/layers/1/outlier_ratio", "8", {"layers[1].outlier_ratio: is \"8\", expected a number"}},
      {"/layers/1/window", 65, {"layers[1]: window 65 is not a multiple of block 32"}},
      {"/layers/1/window", int64_t{1} << 40, {"layers[1].window: 1099511627776 is outside"}},
      {"/layers/1/block", 0, {"layers[1].block: 0 is outside 1"}},
      {"/layers/1/heads", nullptr, {"layers[1]: has no `heads`"}},
      {"/layers/1/heads/0", "dense", {"layers[1].heads[0]: is \"dense\", expected an object"}},
      {"/layers/1/heads/0/kind", nullptr, {"layers[1].heads[0]: has no `kind`"}},
      {"/layers/1/heads/0/kind", "wide", {"layers[1].heads[0].kind: is \"wide\", expected"}},
      {"/layers/1/heads/0/tau", nullptr, {"layers[1].heads[0]: has no `tau`"}},
      {"/layers/1/heads/0/tau", 1.7, {"plan.json: layers[1].heads[0].tau: 1.7 is outside 0 … 1"}},
      {"/layers/1/heads/0/tau", 1, {"layers[1].heads[0].tau: 1 is not below 1"}},
      {"/layers/1/heads/0/tau", -0.1, {"layers[1].heads[0].tau: -0.1 is outside 0 … 1"}},
      {"/layers/1/heads/0/tau", true, {"layers[1].heads[0].tau: is true, expected a number"}},
      {"/layers/1/heads/0/far", "mean", {"layers[1].heads[0].far: is \"mean\", expected cent"}},
      {"/layers/1/heads/0/rank", 3, {"layers[1].heads[0].rank: is no field"}},
      {"/layers/1/heads/1/tau", 0.3, {"layers[1].heads[1].tau: has no meaning in a head without"}},
      {"/layers/2/heads/0/tau", 0.2, {"layers[2]: a layer reuses the set of tau 0.2"}},
      {"/layers/2/mode", "paper", {"layers[2].window: has no meaning in mode paper"}},
      {"/layers/3/heads/1/tau", 0.6, {"layers[3]: attention copy has one tau"}},
      {"/layers/3/heads/1", {{"kind", "dense"}}, {"layers[3]: attention copy has no dense heads"}},
      {"/layers/3/heads/1/far", "own", {"layers[3].heads[1].far: has no meaning in mode copy"}},
      {"/layers/0/linear", 1, {"layers[0].linear: is 1, expected an object"}},
      {"/layers/0/linear/mlp", 1, {"layers[0].linear.mlp: is no field"}},
      {"/layers/0/linear/mlp_inner/kind", "x", {"layers[0].linear.mlp_inner.kind: is \"x\""}},
      {"/layers/0/linear/mlp_inner/kind",
       "dense",
       {"mlp_inner.epsilon: has no meaning in a dense"}},
      {"/layers/0/linear/mlp_inner/kind", "gsi", {"layers[0].linear.mlp_inner: has no `rank`"}},
      {"/layers/0/linear/mlp_inner/rank", 3, {"mlp_inner.rank: has no meaning in a graded group"}},
      {"/layers/0/linear/mlp_inner/epsilon", 1.1, {"linear.mlp_inner.epsilon: 1.1 is outside 0"}},
      {"/layers/0/linear/mlp_inner/width", 1, {"linear.mlp_inner.width: is no field"}},
      {"/layers/3/linear/attention_input/rank", 0, {"attention_input.rank: 0 is outside 1"}},
      {"/layers/3/linear/attention_input/adaptive", -1, {"input.adaptive: -1 is outside 0"}},
  };
  for (const BadValue& bad : all) {
    SCOPED_TRACE(bad.place + " = " + bad.value.dump().substr(0, 100));
    json file = plan_file_json(sample_plan());
    file[json::json_pointer(bad.place)] = bad.value;
    expect_error([&] { parsed(file); }, bad.fragments);
  }
}

TEST(PlanFileRefusals, GsiNeedsBases) {
  PlanFile file = sample_plan();
  for (LayerPlan& layer : file.plan.attention.layers) layer.joint = false;
  json written = plan_file_json(file);
  written["bases"] = nullptr;
  expect_error([&] { parsed(written); }, {"layers[3].linear.attention_input: gsi needs bases"});
  written["layers"][3].erase("linear");
  EXPECT_NO_THROW(parsed(written));
}

// Text that no writer of JSON would write; `from` stands once in the sample.
void expect_text_refused(const std::string& from, const std::string& to,
                         const std::vector<std::string>& fragments) {
  std::string text = plan_file_json(sample_plan()).dump();
  const size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  expect_error([&] { parse_plan_file(text, "plan.json"); }, fragments);
}

TEST(PlanFileRefusals, OfTextThatIsNotJsonNameThePlaceToo) {
  expect_text_refused("\"outlier_ratio\":0.1", "\"outlier_ratio\":NaN",
                      {"plan.json: layers[1].outlier_ratio: not valid JSON"});
  expect_text_refused("\"outlier_ratio\":0.1", "\"outlier_ratio\":1e999",
                      {"plan.json: layers[1].outlier_ratio: not valid JSON", "1e999"});
  expect_text_refused("\"sinks\":2", "\"sinks\":-Infinity", {"layers[1].sinks: not valid JSON"});
  expect_text_refused("\"sinks\":2", "\"sinks\":2,\"sinks\":3",
                      {"layers[1].sinks: is there twice"});
  expect_text_refused("\"context\":1024", "\"context\":1024,\"context\":1024",
                      {"plan.json: context: is there twice"});
  // In the part of any content, too: which of both would be shown?
  expect_text_refused("\"n_documents\":12", "\"n_documents\":12,\"n_documents\":13",
                      {"provenance.held_out.n_documents: is there twice"});
}

TEST(PlanFileRefusals, OfTooMuchComeBeforeAnythingIsBuilt) {
  const auto provenance = [](const std::string& value) {
    json file = plan_file_json(dense_plan());
    file["provenance"] = {{"x", "HERE"}};
    std::string text = file.dump();
    return text.replace(text.find("\"HERE\""), 6, value);
  };
  const auto parse = [](const std::string& text) { parse_plan_file(text, "plan.json"); };
  EXPECT_NO_THROW(parse(provenance("[[]]")));
  expect_error([&] { parse(provenance(std::string(1000, '[') + std::string(1000, ']'))); },
               {"plan.json: provenance.x[0]", "[0]: JSON nests deeper than 64 levels"});
  std::string many = "[0";
  for (int i = 0; i < 1 << 20; ++i) many += ",0";
  expect_error([&] { parse(provenance(many + "]")); }, {"plan.json: holds too many values"});
  expect_error([&] { parse(std::string((16 << 20) + 1, ' ')); },
               {"plan.json: is 16777217 bytes long, expected at most 16777216"});
  expect_error([&] { parse(""); }, {"plan.json: is empty"});
  expect_error([&] { parse("[]"); }, {"plan.json: is not a plan of sluice"});
  const TempDir folder;
  const auto large = folder.write("large.json", std::string((16 << 20) + 1, ' '));
  expect_error([&] { read_plan_file(large); }, {"large.json: is 16777217 bytes long"});
}

TEST(PlanFileRefusals, ShowForeignKeysSafely) {
  json file = plan_file_json(dense_plan());
  file["layers"][1]["a\nb" + std::string(5000, 'x')] = 1;
  const std::string line =
      expect_error([&] { parsed(file); }, {"layers[1].a\\x0ab", "is no field of a plan"});
  EXPECT_LT(line.size(), 300u);

  std::string nested = "1", key = "\"" + std::string(90, 'x') + "\"";
  for (int i = 0; i < 20; ++i) nested = "{" + key + ":" + nested + "}";
  nested.replace(nested.rfind("1"), 1, "!");
  const std::string cut =
      expect_error([&] { parse_plan_file(nested, "plan.json"); }, {"plan.json: ...xx"});
  EXPECT_LT(cut.size(), 600u);
}

// ---- against a model ----

Bases sample_bases() {
  Bases bases;
  bases.text_sha256 = std::string(64, 'b');
  Basis& basis = bases.list.emplace_back();
  basis.layer = 3;
  basis.d = 32;
  basis.rank = 16;
  return bases;
}
PlanTarget target_of(const Bases* bases) {
  return {.sha256 = std::string(64, 'a'),
          .shape = {.n_layers = 5, .n_kv_heads = 3, .causal = true, .context = 2048},
          .linear = {.n_layers = 5, .widths = {.d_model = 32, .attention = 32, .inner = 128}},
          .bases = bases};
}

TEST(CheckPlanFile, TakesTheModelItWasMadeFor) {
  const Bases bases = sample_bases();
  EXPECT_NO_THROW(check_plan_file(sample_plan(), "plan.json", target_of(&bases)));
}

TEST(CheckPlanFile, RefusesAnotherModelOrOtherBases) {
  const Bases bases = sample_bases();
  const auto refused = [&](const PlanTarget& target, const std::vector<std::string>& fragments) {
    expect_error([&] { check_plan_file(sample_plan(), "plan.json", target); }, fragments);
  };
  PlanTarget target = target_of(&bases);
  target.sha256 = std::string(64, 'd');
  refused(target, {"plan.json: made for another model (sha256 `aaaa", "this one's is `dddd"});
  target = target_of(&bases);
  target.shape.n_layers = 6;
  refused(target, {"plan.json: the plan has 5 layers, the model 6"});
  target = target_of(&bases);
  target.linear.widths.d_model = 19;
  refused(target, {"plan.json: layer 3, attention_input: 4 more directions"});
  refused(target_of(nullptr), {"plan.json: has joint layers, and there are no bases"});
  Bases other = sample_bases();
  other.text_sha256 = std::string(64, 'e');
  refused(target_of(&other), {"plan.json: made for other bases"});
  Bases small = sample_bases();
  small.list.front().rank = 15;
  refused(target_of(&small), {"plan.json: layer 3, attention_input: rank 16", "has 15"});
}

// ---- whatever else a file may hold ----

TEST(PlanFileMutations, EveryPieceOfAPlanIsRefused) {
  const std::string whole = plan_file_json(sample_plan()).dump();
  EXPECT_NO_THROW(parse_plan_file(whole, "plan.json"));
  for (size_t n = 0; n < whole.size(); ++n)
    expect_error([&] { parse_plan_file(whole.substr(0, n), "plan.json"); }, {"plan.json: "});
}

TEST(PlanFileMutations, EndInOneLineOrAPlan) {
  const std::vector<json> odd_values = {nullptr,
                                        true,
                                        -1,
                                        0,
                                        1,
                                        3,
                                        5,
                                        int64_t{1} << 40,
                                        1e308,
                                        0.3,
                                        -0.5,
                                        UINT64_MAX,
                                        "",
                                        "dense",
                                        "keys",
                                        "paper",
                                        "gsi",
                                        "graded",
                                        "clusters",
                                        "window",
                                        "cascade-paper",
                                        json::array(),
                                        json::object(),
                                        {{"kind", "window"}}};
  std::mt19937 random(6);
  for (int i = 0; i < 2000; ++i) {
    json file = plan_file_json(sample_plan());
    for (auto n = 1 + random() % 3; n > 0; --n) mutate(file, random, odd_values, 20);
    const std::string text = file.dump();
    EXPECT_NO_THROW(fuzz::feed_plan(text)) << text;
  }
}

TEST(PlanFileMutations, OfBytesEndInOneLineOrAPlan) {
  const std::string whole = plan_file_json(sample_plan()).dump();
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole;
    text[random() % text.size()] = static_cast<char>(random() % 256);
    EXPECT_NO_THROW(fuzz::feed_plan(text)) << text;
  }
}

TEST(PlanFileMutations, CommittedInputsEndInOneLineOrAPlan) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(SLUICE_FUZZ_CORPUS_DIR) / "plan")) {
    EXPECT_NO_THROW(fuzz::feed_plan(read_bytes(entry.path()))) << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace sluice::impl::test
