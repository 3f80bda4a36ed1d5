// Whatever a plan.json holds that is not a plan is refused in one line that names the place.

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "fuzz/plan_harness.h"
#include "paths.h"
#include "plan/plan_file.h"
#include "unit/json_mutation.h"
#include "unit/plan/sample_plan.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

using nlohmann::json;

struct BadValue {
  std::string place;  // as a JSON pointer
  json value;
  std::vector<std::string> fragments;
};

void expect_refused(const std::vector<BadValue>& all) {
  for (const BadValue& bad : all) {
    SCOPED_TRACE(bad.place + " = " + bad.value.dump().substr(0, 100));
    json file = plan_file_json(sample_plan());
    file[json::json_pointer(bad.place)] = bad.value;
    expect_error([&] { parsed(file); }, bad.fragments);
  }
}

// The deltas of a plan belong to the rule that they were chosen by.
TEST(PlanFileRefusals, APlanOfAnEarlierRuleIsRefused) {
  json file = plan_file_json(sample_plan());
  json& layer = file["layers"][1];
  const size_t n_heads = layer.at("heads").size();
  layer = {{"layer", 1}, {"mode", "refine"}, {"segment", 256}, {"page", 16}, {"tile", 64}};
  layer["heads"] = json(n_heads, json{{"kind", "clusters"}, {"delta", 0.1}});
  layer["rule"] = "error";
  expect_error([&] { parsed(file); }, {"rule: is of an earlier version"});
  layer["rule"] = "error-by-groups";
  layer["clusters"] = "pages";
  expect_error([&] { parsed(file); }, {"clusters: is of an earlier version"});
}

TEST(PlanFileRefusals, NameTheirPlace) {
  expect_refused({
      {"/format", "plan", {"is not a plan of sluice"}},
      {"/version", 0, {"version: expected an integer from 1 to ", "found 0"}},
      {"/version", "1", {"version: expected an integer", "found \"1\""}},
      {"/version", 2, {"version: 2 was made by a newer sluice"}},
      {"/tau", 0.3, {"tau: is not a known key"}},
      {"/model", 3, {"model: expected an object, found 3"}},
      {"/model/vocab", 3, {"model.vocab: is not a known key"}},
      {"/model/sha256", nullptr, {"model.sha256: expected a string, found null"}},
      {"/model/sha256", "abc", {"model.sha256: expected a sha256, found \"abc\""}},
      {"/model/sha256", std::string(64, 'A'), {"model.sha256: expected a sha256, found \"AAA"}},
      {"/model/family", "", {"model.family: expected a string of 1 to", "found 0 bytes"}},
      {"/model/family",
       std::string(5000, 'x'),
       {"model.family: expected a string of 1 to", "found 5000 bytes"}},
      {"/model/n_layers", 0, {"model.n_layers: expected an integer from 1 to 1024, found 0"}},
      {"/model/n_layers", 4, {"layers: has 5 elements, model.n_layers is 4"}},
      {"/model/n_layers", 5.5, {"model.n_layers: expected an integer", "found 5.5"}},
      {"/model/n_kv_heads", 4, {"layers[1].heads: has 3 elements, model.n_kv_heads is 4"}},
      {"/model/n_kv_heads",
       UINT64_MAX,
       {"model.n_kv_heads: expected an integer from ", "found 18446744073709551615"}},
      {"/context", 0, {"context: expected an integer from ", "found 0"}},
      {"/context", nullptr, {"plan.json: context: expected an integer", "found null"}},
      {"/objective",
       "speed",
       {"objective: expected prefill, decode, memory, reads or decode-reads, found \"speed\""}},
      {"/objective", 1, {"objective: expected prefill", "found 1"}},
      {"/contract", json::array(), {"contract: expected an object, found an array"}},
      {"/contract/max_kl", -0.1, {"contract.max_kl: expected a number of 0 or more, found -0.1"}},
      {"/contract/max_kl_p99",
       -1,
       {"contract.max_kl_p99: expected a number of 0 or more, found -1"}},
      {"/contract/max_kl_p999", "1", {"contract.max_kl_p999: expected a number", "found \"1\""}},
      {"/contract/max_ppl_ratio",
       0.9,
       {"contract.max_ppl_ratio: expected a number of 1 or more, found 0.9"}},
      {"/contract/max_loss", 1, {"contract.max_loss: is not a known key"}},
      {"/auto/prefill_from", -1, {"auto.prefill_from: expected an integer from 0 to ", "found -1"}},
      {"/auto/decode_from", 0.5, {"auto.decode_from: expected an integer", "found 0.5"}},
      {"/auto/from", 1, {"auto.from: is not a known key"}},
      {"/measured", 2, {"measured: expected an object, found 2"}},
      {"/measured/dtype", "f16", {"measured.dtype: expected f32 or bf16, found \"f16\""}},
      {"/measured/device", nullptr, {"measured.device: expected a string, found null"}},
      {"/measured/device",
       std::string(5000, 'x'),
       {"measured.device: expected a string of 1 to", "found 5000 bytes"}},
      {"/measured/threads", 0, {"measured.threads: expected an integer from 1 to ", "found 0"}},
      {"/measured/cores", 2, {"measured.cores: is not a known key"}},
      {"/bases/path", "", {"bases.path: expected a string of 1 to", "found 0 bytes"}},
      {"/bases/path", "/etc/passwd", {"bases.path: leads out of the plan's folder"}},
      {"/bases/path", "b/../../c", {"bases.path: leads out of the plan's folder"}},
      {"/bases/text_sha256", "x", {"bases.text_sha256: expected a sha256, found \"x\""}},
      {"/bases/rank", 3, {"bases.rank: is not a known key"}},
      {"/bases", nullptr, {"layers[1].joint: needs bases"}},
      {"/provenance", "me", {"provenance: expected an object, found \"me\""}},
      {"/layers", nullptr, {"plan.json: layers: expected an array, found null"}},
      {"/layers", json::object(), {"layers: expected an array, found an object"}},
  });
}

TEST(PlanFileRefusals, NameTheirPlaceInALayer) {
  expect_refused({
      {"/layers/0", 3, {"layers[0]: expected an object, found 3"}},
      {"/layers/0/window", 128, {"layers[0].window: has no meaning in a dense layer"}},
      {"/layers/0/heads", json::array(), {"layers[0].heads: has no meaning in a dense layer"}},
      {"/layers/0/cache", "int4", {"layers[0].cache: expected exact or int8, found \"int4\""}},
      {"/layers/1/cache", "int8", {"layers[1].cache: has no meaning in mode keys"}},
      {"/layers/1/layer", 2, {"layers[1].layer: expected 1, found 2"}},
      {"/layers/1/layer", nullptr, {"layers[1].layer: expected an integer", "found null"}},
      {"/layers/1/head", 2, {"layers[1].head: is not a known key"}},
      {"/layers/1/mode",
       "fast",
       {"layers[1].mode: expected dense, refine, keys", "found \"fast\""}},
      {"/layers/1/select", "best", {"layers[1].select: expected independent", "found \"best\""}},
      {"/layers/1/select", "fixed", {"layers[1].select: expected independent", "found \"fixed\""}},
      {"/layers/1/select", "cascade-paper", {"layers[1]: cascade-paper does not go with"}},
      {"/layers/1/space", "key", {"layers[1].space: expected residual or normed, found \"key\""}},
      {"/layers/1/reuse", 1, {"layers[1].reuse: expected true or false, found 1"}},
      {"/layers/1/reuse", true, {"layers[1]: the plan's first selected layer reuses"}},
      {"/layers/1/joint", "no", {"layers[1].joint: expected true or false, found \"no\""}},
      {"/layers/1/sinks", -1, {"layers[1].sinks: expected an integer from 0 to ", "found -1"}},
      {"/layers/1/outlier_ratio",
       -1,
       {"layers[1].outlier_ratio: expected a number of 0 or more, found -1"}},
      {"/layers/1/outlier_ratio",
       "8",
       {"layers[1].outlier_ratio: expected a number", "found \"8\""}},
      {"/layers/1/window", 65, {"layers[1]: window 65 is not a multiple of block 32"}},
      {"/layers/1/window",
       int64_t{1} << 40,
       {"layers[1].window: expected an integer from ", "found 1099511627776"}},
      {"/layers/1/block", 0, {"layers[1].block: expected an integer from 1 to ", "found 0"}},
      {"/layers/1/heads", nullptr, {"layers[1].heads: expected an array, found null"}},
      {"/layers/1/heads/0", "dense", {"layers[1].heads[0]: expected an object, found \"dense\""}},
      {"/layers/1/heads/0/kind", nullptr, {"layers[1].heads[0].kind: expected", "found null"}},
      {"/layers/1/heads/0/kind",
       "wide",
       {"layers[1].heads[0].kind: expected dense, window or clusters, found \"wide\""}},
      {"/layers/1/heads/0/tau", nullptr, {"layers[1].heads[0].tau: expected", "found null"}},
      {"/layers/1/heads/0/tau",
       1.7,
       {"plan.json: layers[1].heads[0].tau: expected a number from 0 to 1, found 1.7"}},
      {"/layers/1/heads/0/tau", 1, {"layers[1].heads[0].tau: expected a number below 1, found 1"}},
      {"/layers/1/heads/0/tau",
       -0.1,
       {"layers[1].heads[0].tau: expected a number from 0 to 1, found -0.1"}},
      {"/layers/1/heads/0/tau", true, {"layers[1].heads[0].tau: expected a number", "found true"}},
      {"/layers/1/heads/0/far",
       "mean",
       {"layers[1].heads[0].far: expected cent", "found \"mean\""}},
      {"/layers/1/heads/0/rank", 3, {"layers[1].heads[0].rank: is not a known key"}},
      {"/layers/1/heads/1/tau", 0.3, {"layers[1].heads[1].tau: has no meaning in a head without"}},
      {"/layers/2/heads/0/tau", 0.2, {"layers[2]: a layer reuses the set of tau 0.2"}},
      {"/layers/2/mode", "paper", {"layers[2].window: has no meaning in mode paper"}},
      {"/layers/3/heads/1/tau", 0.6, {"layers[3]: attention copy has one tau"}},
      {"/layers/3/heads/1", {{"kind", "dense"}}, {"layers[3]: attention copy has no dense heads"}},
      {"/layers/3/heads/1/far", "own", {"layers[3].heads[1].far: has no meaning in mode copy"}},
      {"/layers/0/linear", 1, {"layers[0].linear: expected an object, found 1"}},
      {"/layers/0/linear/mlp", 1, {"layers[0].linear.mlp: is not a known key"}},
      {"/layers/0/linear/mlp_inner/kind",
       "x",
       {"layers[0].linear.mlp_inner.kind: expected", "found \"x\""}},
      {"/layers/0/linear/mlp_inner/kind",
       "dense",
       {"mlp_inner.epsilon: has no meaning in a dense"}},
      {"/layers/0/linear/mlp_inner/kind", "gsi", {"layers[0].linear.mlp_inner: has no `rank`"}},
      {"/layers/0/linear/mlp_inner/rank", 3, {"mlp_inner.rank: has no meaning in a graded group"}},
      {"/layers/0/linear/mlp_inner/epsilon",
       1.1,
       {"linear.mlp_inner.epsilon: expected a number from 0 to ", "found 1.1"}},
      {"/layers/0/linear/mlp_inner/width", 1, {"linear.mlp_inner.width: is not a known key"}},
      {"/layers/3/linear/attention_input/rank",
       0,
       {"attention_input.rank: expected an integer from 1 to ", "found 0"}},
      {"/layers/3/linear/attention_input/adaptive",
       -1,
       {"input.adaptive: expected an integer from 0 to ", "found -1"}},
  });
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
  expect_error([&] { parse(provenance(many + "]")); },
               {"plan.json: holds more than 1048576 values"});
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
      expect_error([&] { parsed(file); }, {"layers[1].`a\\x0ab", "is not a known key"});
  EXPECT_LT(line.size(), 300u);

  std::string nested = "1", key = "\"" + std::string(90, 'x') + "\"";
  for (int i = 0; i < 20; ++i) nested = "{" + key + ":" + nested + "}";
  nested.replace(nested.rfind("1"), 1, "!");
  const std::string cut =
      expect_error([&] { parse_plan_file(nested, "plan.json"); }, {"plan.json: ...xx"});
  EXPECT_LT(cut.size(), 600u);
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
  for (const auto& entry : std::filesystem::directory_iterator(test::fuzz_corpus_dir() / "plan")) {
    EXPECT_NO_THROW(fuzz::feed_plan(read_bytes(entry.path()))) << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace sluice::impl::test
