// Files made to hurt: too many values, too deep, text that multiplies, strings of megabytes.

#include <chrono>
#include <limits>

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

class RefusesHostile : public testing::TestWithParam<Refusal> {};

// Memory: several times the largest of these files. Time is not compared: an answer that grows with
// the square takes minutes, which the limit of a run ends.
TEST_P(RefusesHostile, WithOneLineInBoundedMemory) {
  ModelFolder folder(GetParam().golden);
  const RunResult result = run_program(GetParam().build(folder), std::chrono::seconds(60));
  expect_complaint(result, 1, GetParam().fragments);
  EXPECT_EQ(result.out, "") << result;
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  if (!kSanitized) {
    EXPECT_LT(result.peak_bytes, kMostBytes) << result;
  }
}

std::string repeated(const std::string& text, size_t n) {
  std::string all;
  all.reserve(text.size() * n);
  for (size_t i = 0; i < n; ++i) all += text;
  return all;
}

// 4 MB of small objects.
std::string small_objects() { return R"({"x":[{})" + repeated(",{}", 1'300'000) + "]}"; }
std::string nested_arrays(size_t n) { return R"({"measurements":)" + std::string(n, '['); }

Refusal with_file(std::string name, const std::string& file, std::function<std::string()> text,
                  std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [file, text = std::move(text)](ModelFolder& folder) {
                folder.write(file, text());
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

Refusal with_command(std::string name, const std::string& file, const Args& command,
                     std::function<std::string()> text, std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [=](ModelFolder& folder) {
                Args args = command;
                args.push_back(folder.write(file, text()));
                return args;
              },
          .fragments = std::move(fragments)};
}

Refusal hostile_tokenizer(std::string name, const char* pointer, const json& value,
                          std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [=](ModelFolder& folder) {
                folder.edit_json("tokenizer.json", [&](json& tokenizer) {
                  tokenizer[json::json_pointer(pointer)] = value;
                });
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

json sequence_of(const char* list, const json& step, size_t n) {
  return {{"type", "Sequence"}, {list, json::array_t(n, step)}};
}

json doubling(size_t n) {
  return {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(n, 'a')}};
}

std::vector<Refusal> hostile_files() {
  return {
      with_file("ConfigOfSmallObjects", "config.json", small_objects,
                {"config.json: its values take more than 51700030 bytes of memory"}),
      with_file("ConfigOfManyValues", "config.json",
                [] { return "[1" + repeated(",1", 2'000'000) + "]"; },
                {"config.json: holds more than 1048576 values"}),
      with_file("ConfigTooLong", "config.json", [] { return std::string(5 << 20, ' '); },
                {"config.json: is 5242880 bytes long, expected at most 4194304"}),
      with_file("ConfigTooDeep", "config.json", [] { return nested_arrays(100'000); },
                {"JSON nests deeper than 64 levels"}),
      with_file("TokenizerOfArrays", "tokenizer.json",
                [] { return "[" + repeated("[],", 5'000'000) + "[]]"; },
                {"tokenizer.json: its values take more than 85000012 bytes of memory"}),
      with_file("TokenizerTooDeep", "tokenizer.json", [] { return nested_arrays(100'000); },
                {"tokenizer.json", "JSON nests deeper than 64 levels"}),
      {.name = "TextOfUtf16",
       .build =
           [](ModelFolder& folder) {
             const std::string text(
                 "\xff\xfe"
                 "a\0b\0",
                 6);
             return Args{"eval", "-m", folder.path(), "-f", folder.write("wide.txt", text)};
           },
       .fragments = {"wide.txt: is no text in UTF-8: byte 3 is 0", "iconv"}},
      with_command("ResultsOfSmallObjects", "r.json", {"report", "-o", "/dev/null"}, small_objects,
                   {"r.json: its values take more than 51700030 bytes of memory"}),
      with_command("ResultsTooDeep", "r.json", {"report", "-o", "/dev/null"},
                   [] { return nested_arrays(100'000); },
                   {"r.json", "JSON nests deeper than 64 levels"}),
      with_command("ResultsTooLarge", "r.json", {"report", "-o", "/dev/null"},
                   [] {
                     return std::string(R"({"schema":1,"version":"0.1.0","command":"bench",)"
                                        R"("cases":[],"settings":{"a":1e308}})");
                   },
                   {"r.json: settings.a: expected a number from -1e+100 to 1e+100, found 1e+308"}),
      with_command("PlanOfSmallObjects", "plan.json", {"inspect"}, small_objects,
                   {"plan.json: its values take more than 51700030 bytes of memory"}),
      with_command("PlanTooDeep", "plan.json", {"inspect"}, [] { return nested_arrays(100'000); },
                   {"plan.json", "JSON nests deeper than 64 levels"}),
  };
}

std::vector<Refusal> hostile_models() {
  const char* grows = "the tokenizer makes";
  return {
      hostile_tokenizer("ManyDecoderSteps", "/decoder",
                        sequence_of("decoders", {{"type", "Fuse"}}, 100'000),
                        {"decoder: has more than 256 steps"}),
      hostile_tokenizer("NormalizersThatDouble", "/normalizer",
                        sequence_of("normalizers", doubling(2), 30), {grows}),
      hostile_tokenizer("NormalizersThatMultiply", "/normalizer",
                        sequence_of("normalizers", doubling(1000), 10), {grows}),
      {.name = "SlowPattern",
       .build =
           [](ModelFolder& folder) {
             folder.edit_json("tokenizer.json", [](json& tokenizer) {
               tokenizer["pre_tokenizer"]["pattern"]["Regex"] = "[a-z]{0,2200}[a-z]{0,2200}[0-9]";
             });
             // Twenty thousand starts of two million steps each: minutes, on any machine.
             return Args{"tokenize", "-m", folder.path(), "-f",
                         folder.write("long.txt", std::string(20'000, 'a'))};
           },
       .fragments = {"the pattern could not be matched: it takes too long on this text"}},
      {.name = "BertWithoutTokenTypes",
       .build =
           [](ModelFolder& folder) {
             folder.edit_tensors([](json& header, std::string& data) {
               json& entry = header.at("bert.embeddings.token_type_embeddings.weight");
               header["spare"] = entry;
               entry["shape"] = {0, 32};
               entry["data_offsets"] = {data.size(), data.size()};
             });
             return Args{"bench", "-m", folder.path(), "-c", "8"};
           },
       .fragments = {"token_type_embeddings.weight is (0, 32), expected a row for each token type"},
       .golden = "bert"},
      {.name = "NormsThatAreNotNumbers",
       .build =
           [](ModelFolder& folder) {
             folder.edit_tensors([](json& header, std::string& data) {
               const size_t begin = header["transformer.ln_f.weight"]["data_offsets"][0];
               data.replace(begin, 4, pack(std::numeric_limits<float>::quiet_NaN()));
             });
             return Args{"bench", "-m", folder.path(), "-c", "8"};
           },
       .fragments = {"model.safetensors: transformer.ln_f.weight holds a number that is not"}},
      {.name = "WeightsThatAreNotNumbers",
       .build =
           [](ModelFolder& folder) {
             folder.edit_tensors([](json& header, std::string& data) {
               const json& range = header["transformer.wte.weight"]["data_offsets"];
               const std::string nan = pack(std::numeric_limits<float>::quiet_NaN());
               for (size_t at = range[0]; at < range[1].get<size_t>(); at += 4)
                 data.replace(at, 4, nan);
             });
             return Args{"bench", "-m", folder.path(), "-c", "8", "-n", "2"};
           },
       .fragments = {"sluice: /", ": the model's scores are not finite"}},
      {.name = "InspectOfAnImpossibleWidth",
       .build =
           [](ModelFolder& folder) {
             folder.set_config("n_inner", 1 << 20);
             return Args{"inspect", "-m", folder.path()};
           },
       .fragments = {"model.safetensors: transformer.h.0.mlp.c_fc.weight is (32, 128), the config "
                     "implies (32, 1048576)"}},
      {.name = "UnknownLayerType",
       .build =
           [](ModelFolder& folder) {
             folder.edit_json("config.json", [](json& config) {
               config["use_sliding_window"] = true;
               config["sliding_window"] = 8;
               config["layer_types"] =
                   json::array_t(config["num_hidden_layers"].get<size_t>(), "linear_attention");
             });
             return Args{"inspect", "-m", folder.path()};
           },
       .fragments = {"layer_types: expected sliding_attention or full_attention"},
       .golden = "qwen2"},
  };
}

INSTANTIATE_TEST_SUITE_P(Files, RefusesHostile, testing::ValuesIn(hostile_files()), name_of);
INSTANTIATE_TEST_SUITE_P(Models, RefusesHostile, testing::ValuesIn(hostile_models()), name_of);

}  // namespace
}  // namespace sluice::impl
