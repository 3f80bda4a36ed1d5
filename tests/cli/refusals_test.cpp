// What the program refuses, and how: the right exit code (1: the input or the machine, 2: the
// command line), one line on stderr with a hint, nothing on stdout that could pass for a result.

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <random>

#include "cli/model_folder.h"
#include "cli/run_program.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Args;
using test::letter_text;
using test::ModelFolder;
using test::pack;
using test::replace_once;
using test::run_program;
using test::RunResult;

struct Refusal {
  std::string name;
  std::function<Args(ModelFolder&)> build;  // damages the folder and gives the command line
  std::vector<std::string> fragments;       // of the line on stderr
  int code = 1;
  std::string golden = "gpt2";
};

void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

void expect_no_crash(const RunResult& result) {
  EXPECT_FALSE(result.timed_out) << result;
  EXPECT_LT(result.code, 128) << result;
  for (const char* report : {"Sanitizer", "runtime error", "internal error", "terminate called"})
    EXPECT_EQ(result.err.find(report), std::string::npos) << result;
}

// One line, from the program, with every fragment and a hint.
void expect_complaint(const RunResult& result, int code,
                      const std::vector<std::string>& fragments) {
  expect_no_crash(result);
  EXPECT_EQ(result.code, code) << result;
  EXPECT_TRUE(result.err.starts_with("sluice: ")) << result;
  EXPECT_TRUE(result.err.ends_with(")\n")) << result;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result;
  EXPECT_NE(result.err.find(" (hint: "), std::string::npos) << result;
  EXPECT_LT(result.err.size(), 600u) << result;
  for (const std::string& fragment : fragments)
    EXPECT_NE(result.err.find(fragment), std::string::npos) << "expected: " << fragment << "\n"
                                                            << result;
}

class Refuses : public testing::TestWithParam<Refusal> {};

TEST_P(Refuses, WithOneLineAndAHint) {
  const Refusal& refusal = GetParam();
  ModelFolder folder(refusal.golden);
  const RunResult result = run_program(refusal.build(folder));
  expect_complaint(result, refusal.code, refusal.fragments);
  EXPECT_EQ(result.out, "") << result;
}

std::string name_of(const testing::TestParamInfo<Refusal>& info) { return info.param.name; }

// ---- command lines ----

Args eval_of(const ModelFolder& folder, Args more = {}) {
  Args args{"eval", "-m", folder.path(), "-f", folder.write("text.txt", letter_text(200))};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Args generate_of(const ModelFolder& folder, Args more = {}) {
  Args args{"generate", "-m", folder.path(), "-n", "4"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Args eval_of_file(const ModelFolder& folder, const std::string& model) {
  return {"eval", "-m", model, "-f", folder.write("text.txt", letter_text(200))};
}

// ---- safetensors ----

constexpr const char* kBias = "transformer.ln_f.bias";   // 32 floats
constexpr const char* kLast = "transformer.wte.weight";  // at the end of the file
constexpr const char* kNorm = "transformer.ln_f.weight";

using EditTensors = std::function<void(json&, std::string&)>;

Refusal bad_tensors(std::string name, EditTensors edit, std::vector<std::string> fragments) {
  fragments.insert(fragments.begin(), "model.safetensors");
  return {.name = std::move(name),
          .build =
              [edit = std::move(edit)](ModelFolder& folder) {
                folder.edit_tensors(edit);
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

Refusal bad_weights_file(std::string name, std::function<void(std::string&)> edit,
                         std::vector<std::string> fragments) {
  fragments.insert(fragments.begin(), "model.safetensors");
  return {.name = std::move(name),
          .build =
              [edit = std::move(edit)](ModelFolder& folder) {
                folder.edit_bytes("model.safetensors", edit);
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

std::vector<Refusal> safetensors_refusals() {
  return {
      bad_weights_file("TruncatedData",
                       [](std::string& bytes) { bytes.resize(bytes.size() - 1000); },
                       {"out of range", "is the download complete?"}),
      bad_weights_file("TruncatedHeader", [](std::string& bytes) { bytes.resize(100); },
                       {"header length", "more than the 92 bytes that follow"}),
      bad_weights_file("EmptyFile", [](std::string& bytes) { bytes.clear(); },
                       {"0 bytes long, too short"}),
      bad_weights_file(
          "GarbageHeader",
          [](std::string& bytes) { std::fill(bytes.begin() + 8, bytes.begin() + 200, '#'); },
          {"header does not begin with `{`", "is this a safetensors file?"}),
      bad_weights_file(
          "HeaderIsNotJson",
          [](std::string& bytes) { std::fill(bytes.begin() + 40, bytes.begin() + 60, '\1'); },
          {"header: not valid JSON"}),
      bad_weights_file("HugeHeaderLength",
                       [](std::string& bytes) { bytes.replace(0, 8, pack<uint64_t>(UINT64_MAX)); },
                       {"header length 18446744073709551615 is over the limit"}),
      bad_weights_file(
          "LfsPointer",
          [](std::string& bytes) {
            bytes = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 117800\n";
          },
          {"Git LFS pointer", "git lfs pull"}),
      bad_weights_file("TrailingBytes", [](std::string& bytes) { bytes += "more"; },
                       {"no tensor covers bytes"}),
      bad_tensors("OverlappingOffsets",
                  [](json& header, std::string&) {
                    for (auto& offset : header[kBias]["data_offsets"])
                      offset = offset.get<int>() - 128;
                  },
                  {"overlap"}),
      bad_tensors("OffsetsOutOfRange",
                  [](json& header, std::string&) {
                    for (auto& offset : header[kLast]["data_offsets"])
                      offset = offset.get<int>() + 1'000'000;
                  },
                  {kLast, "out of range"}),
      bad_tensors("OffsetsRunBackwards",
                  [](json& header, std::string&) {
                    auto& offsets = header[kBias]["data_offsets"];
                    std::swap(offsets[0], offsets[1]);
                  },
                  {kBias, "run backwards"}),
      bad_tensors("NegativeShape",
                  [](json& header, std::string&) { header[kBias]["shape"] = {-32}; },
                  {kBias, "shape holds the number -32", "0 or more"}),
      bad_tensors("HugeShape",
                  [](json& header, std::string&) {
                    header[kBias]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
                  },
                  {kBias, "shape is too large"}),
      bad_tensors("ByteCountContradictsShape",
                  [](json& header, std::string&) { header[kBias]["shape"] = {33}; },
                  {kBias, "do not match its shape", "132 bytes"}),
      bad_tensors("MissingTensor",
                  [](json& header, std::string&) {
                    header["transformer.ln_g.weight"] = header[kNorm];
                    header.erase(kNorm);
                  },
                  {"no tensor `transformer.ln_f.weight`", "nearest: `transformer.ln_g.weight`"}),
      bad_tensors("UnsupportedDtype",
                  [](json& header, std::string&) {
                    header[kBias]["dtype"] = "I64";
                    header[kBias]["shape"] = {16};
                  },
                  {kBias, "of type I64", "convert the weights to F32, F16 or BF16"}),
      bad_tensors("UnknownDtype",
                  [](json& header, std::string&) { header[kBias]["dtype"] = "F31"; },
                  {kBias, "unknown dtype `F31`"}),
      {.name = "ScalarWhereATableIsNeeded",
       .build =
           [](ModelFolder& folder) {
             folder.edit_tensors([](json& header, std::string& data) {
               const std::string table = "bert.embeddings.token_type_embeddings.weight";
               header["spare"] = header.at(table);
               header[table] = {{"dtype", "F32"},
                                {"shape", json::array()},
                                {"data_offsets", {data.size(), data.size() + 4}}};
               data += std::string(4, '\0');
             });
             return eval_of(folder);
           },
       .fragments = {"token_type_embeddings.weight is ()", "the config implies"},
       .golden = "bert"},
      {.name = "NoWeights",
       .build =
           [](ModelFolder& folder) {
             folder.remove("model.safetensors");
             return eval_of(folder);
           },
       .fragments = {"neither model.safetensors nor model.safetensors.index.json"}},
      {.name = "PickleOnly",
       .build =
           [](ModelFolder& folder) {
             fs::rename(folder.file("model.safetensors"), folder.file("pytorch_model.bin"));
             return eval_of(folder);
           },
       .fragments = {"convert pytorch_model.bin to safetensors first"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Safetensors, Refuses, testing::ValuesIn(safetensors_refusals()), name_of);

Refusal bad_index(std::string name, std::function<void(ModelFolder&)> damage,
                  std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [damage = std::move(damage)](ModelFolder& folder) {
                damage(folder);
                return eval_of(folder);
              },
          .fragments = std::move(fragments),
          .golden = "gpt2-sharded"};
}

constexpr const char* kIndex = "model.safetensors.index.json";

void place_first_tensor(ModelFolder& folder, const json& file) {
  folder.edit_json(kIndex, [&](json& index) { *index["weight_map"].begin() = file; });
}

std::vector<Refusal> index_refusals() {
  return {
      bad_index("MissingShard",
                [](ModelFolder& folder) { folder.remove("model-00002-of-00004.safetensors"); },
                {kIndex, "shard `model-00002-of-00004.safetensors` is missing", "complete?"}),
      bad_index("ShardOutsideTheFolder",
                [](ModelFolder& folder) { place_first_tensor(folder, "../x.safetensors"); },
                {kIndex, "`../x.safetensors`", "a file beside the index"}),
      bad_index("ShardIsANumber", [](ModelFolder& folder) { place_first_tensor(folder, 7); },
                {kIndex, "is 7, expected a file name"}),
      bad_index("TensorInAnotherShard",
                [](ModelFolder& folder) {
                  place_first_tensor(folder, "model-00004-of-00004.safetensors");
                },
                {"model-00004-of-00004.safetensors: no tensor", "from one checkpoint?"}),
      bad_index("NotJson", [](ModelFolder& folder) { folder.write(kIndex, "weight_map"); },
                {kIndex, "not valid JSON"}),
      bad_index("NoWeightMap", [](ModelFolder& folder) { folder.write(kIndex, "{}"); },
                {kIndex, "no `weight_map`"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Index, Refuses, testing::ValuesIn(index_refusals()), name_of);

// ---- config.json ----

Refusal bad_config(std::string name, const std::string& key, const json& value,
                   std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [key, value](ModelFolder& folder) {
                folder.set_config(key, value);
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

Refusal bad_config_text(std::string name, const std::string& text,
                        std::vector<std::string> fragments) {
  fragments.insert(fragments.begin(), "config.json");
  return {.name = std::move(name),
          .build =
              [text](ModelFolder& folder) {
                folder.write("config.json", text);
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

std::vector<Refusal> config_refusals() {
  const std::string hint = "are config and weights from one checkpoint?";
  return {
      bad_config("WidthContradictsWeights", "n_embd", 48, {"the config implies (64, 48)", hint}),
      bad_config("VocabularyContradictsWeights", "vocab_size", 65,
                 {"wte.weight is (64, 32), the config implies (65, 32)", hint}),
      bad_config("PositionsContradictWeights", "n_positions", 50,
                 {"wpe.weight is (40, 32), the config implies (50, 32)", hint}),
      bad_config("InnerWidthContradictsWeights", "n_inner", 64,
                 {"c_fc.weight is (32, 128), the config implies (32, 64)", hint}),
      bad_config("MoreLayersThanWeights", "n_layer", 3,
                 {"no tensor `transformer.h.2.", "is the checkpoint complete"}),
      bad_config("HeadsDoNotDivideWidth", "n_head", 3, {"`n_head` is 3", "a divisor of `n_embd`"}),
      bad_config("WidthIsText", "n_embd", "wide", {"`n_embd` is \"wide\"", "expected an integer"}),
      bad_config("WidthIsNegative", "n_embd", -32, {"`n_embd` is -32", "expected an integer"}),
      bad_config("WidthIsHuge", "n_embd", int64_t{1} << 62, {"`n_embd` is 4611686018427387904"}),
      bad_config("WidthIsAFraction", "n_embd", 32.5, {"`n_embd` is 32.5", "expected an integer"}),
      bad_config("WidthIsNull", "n_embd", nullptr, {"no `n_embd`"}),
      bad_config("FewerLayersThanWeights", "n_layer", 1, {"states 1 layers", "h.1."}),
      bad_config("UntiedWithoutAHead", "tie_word_embeddings", false, {"lm_head.weight"}),
      bad_config("LayersAreHuge", "n_layer", 1'000'000'000, {"`n_layer` is 1000000000"}),
      bad_config("UnknownActivation", "activation_function", "tanhh", {"\"tanhh\"", "gelu_new"}),
      bad_config("UnknownFamily", "model_type", "rwkv",
                 {"`model_type` is \"rwkv\"", "gpt2, gptj, opt", "not supported yet"}),
      bad_config_text("NotJson", "n_embd = 32\n", {"not valid JSON"}),
      bad_config_text("Truncated", R"({"model_type": "gpt2", "n_embd": )", {"not valid JSON"}),
      bad_config_text("NotANumber", R"({"model_type": "gpt2", "n_embd": NaN})", {"not valid JSON"}),
      bad_config_text("Empty", "", {"is empty"}),
      bad_config_text("EmptyObject", "{}", {"no `model_type`"}),
      bad_config_text("List", "[1, 2]", {"an array, expected a JSON object"}),
      bad_config_text("NestsTooDeep", std::string(100'000, '['), {"nests deeper"}),
      {.name = "Missing",
       .build =
           [](ModelFolder& folder) {
             folder.remove("config.json");
             return eval_of(folder);
           },
       .fragments = {"no config.json in this folder"}},
      {.name = "IsAFolder",
       .build =
           [](ModelFolder& folder) {
             folder.remove("config.json");
             fs::create_directory(folder.file("config.json"));
             return eval_of(folder);
           },
       .fragments = {"config.json", "is a directory, expected a file"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Config, Refuses, testing::ValuesIn(config_refusals()), name_of);

// ---- tokenizer ----

Refusal bad_tokenizer(std::string name, std::function<void(json&)> edit,
                      std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [edit = std::move(edit)](ModelFolder& folder) {
                folder.edit_json("tokenizer.json", edit);
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

std::vector<Refusal> tokenizer_refusals() {
  return {
      {.name = "Missing",
       .build =
           [](ModelFolder& folder) {
             folder.remove("tokenizer.json");
             return eval_of(folder);
           },
       .fragments = {"has no tokenizer.json", "save_pretrained"}},
      {.name = "NotJson",
       .build =
           [](ModelFolder& folder) {
             folder.write("tokenizer.json", "{\"model\": {\"type\": \"WordLevel\", ");
             return eval_of(folder);
           },
       .fragments = {"tokenizer.json", "not valid JSON"}},
      {.name = "LinkToItself",
       .build =
           [](ModelFolder& folder) {
             folder.remove("tokenizer.json");
             fs::create_symlink("tokenizer.json", folder.file("tokenizer.json"));
             return eval_of(folder);
           },
       .fragments = {"tokenizer.json"}},
      bad_tokenizer("NoModel", [](json& root) { root.erase("model"); },
                    {"tokenizer.json", "model"}),
      bad_tokenizer("UnknownModel", [](json& root) { root["model"]["type"] = "Magic"; },
                    {"tokenizer.json", "`Magic`", "not supported"}),
      bad_tokenizer("TwoTokensOneId", [](json& root) { root["model"]["vocab"]["b"] = 3; },
                    {"tokenizer.json", "gives id 3 to both"}),
      bad_tokenizer("NegativeId", [](json& root) { root["model"]["vocab"]["b"] = -1; },
                    {"tokenizer.json"}),
      bad_tokenizer("BrokenPattern",
                    [](json& root) { root["pre_tokenizer"]["pattern"]["Regex"] = "(unclosed"; },
                    {"tokenizer.json"}),
      bad_tokenizer("MoreTokensThanTheModel", [](json& root) { root["model"]["vocab"]["~"] = 64; },
                    {"the tokenizer has 65 tokens, the model 64", "from one checkpoint?"}),
      bad_tokenizer("TextItCannotSpell",
                    [](json& root) {
                      root["model"]["vocab"].erase("<unk>");
                      root["model"]["vocab"].erase("e");
                    },
                    {"unk_token `<unk>`", "does not cover this text"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Refuses, testing::ValuesIn(tokenizer_refusals()), name_of);

// ---- texts, prompts and what does not fit ----

std::vector<Refusal> text_refusals() {
  const auto eval_text = [](const ModelFolder& folder, const std::string& text) {
    return Args{"eval", "-m", folder.path(), "-f", folder.write("text.txt", text)};
  };
  return {
      {.name = "Empty",
       .build = [=](ModelFolder& folder) { return eval_text(folder, ""); },
       .fragments = {"fewer than two tokens", "-f takes a text file"}},
      {.name = "OnlyLineEnds",
       .build = [=](ModelFolder& folder) { return eval_text(folder, "\n\r\n\n"); },
       .fragments = {"fewer than two tokens"}},
      {.name = "OneToken",
       .build =
           [=](ModelFolder& folder) {
             folder.remove("tokenizer_config.json");  // else a first token stands before the text
             return eval_text(folder, "a");
           },
       .fragments = {"fewer than two tokens"}},
      {.name = "Missing",
       .build =
           [](ModelFolder& folder) {
             return Args{"eval", "-m", folder.path(), "-f", folder.file("none.txt")};
           },
       .fragments = {"none.txt", "cannot be read"}},
      {.name = "IsAFolder",
       .build =
           [](ModelFolder& folder) {
             return Args{"eval", "-m", folder.path(), "-f", folder.path()};
           },
       .fragments = {"is a folder", "-f takes a text file"}},
      {.name = "PromptFileMissing",
       .build =
           [](ModelFolder& folder) {
             return generate_of(folder, {"-f", folder.file("none")});
           },
       .fragments = {"none", "No such file", "check the spelling"}},
      {.name = "PromptFileIsAFolder",
       .build =
           [](ModelFolder& folder) {
             return generate_of(folder, {"-f", folder.path()});
           },
       .fragments = {"is a directory, expected a file"}},
      {.name = "PromptLongerThanContext",
       .build =
           [](ModelFolder& folder) {
             return generate_of(folder, {"-p", letter_text(100)});
           },
       .fragments = {"the prompt has 100 tokens, the context is 40", "a shorter prompt"}},
      {.name = "EmptyPromptWithoutAFirstToken",
       .build =
           [](ModelFolder& folder) {
             folder.remove("tokenizer_config.json");
             return generate_of(folder, {"-p", ""});
           },
       .fragments = {"the prompt is empty"}},
      {.name = "ContextLongerThanTheModels",
       .build =
           [](ModelFolder& folder) {
             return eval_of(folder, {"-c", "41"});
           },
       .fragments = {"context 41 is longer than the model's 40", "use --context 40 or less"}},
      {.name = "EvalOfAnEncoder",
       .build = [](ModelFolder& folder) { return eval_of(folder); },
       .fragments = {"bert is an encoder", "causal"},
       .golden = "bert"},
      {.name = "GenerateWithAnEncoder",
       .build =
           [](ModelFolder& folder) {
             return generate_of(folder, {"-p", "ab"});
           },
       .fragments = {"bert is an encoder", "causal"},
       .golden = "bert"},
      {.name = "NoCudaInThisBuild",
       .build =
           [](ModelFolder& folder) {
             return eval_of(folder, {"--device", "cuda"});
           },
       .fragments = {"no CUDA backend", "--device cpu"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Text, Refuses, testing::ValuesIn(text_refusals()), name_of);

// ---- GGUF ----

Refusal bad_gguf(std::string name, std::function<void(std::string&)> edit,
                 std::vector<std::string> fragments, std::string golden = "gpt2-f32.gguf") {
  fragments.insert(fragments.begin(), "model.gguf");
  return {
      .name = std::move(name),
      .build = [edit = std::move(edit), golden](
                   ModelFolder& folder) { return eval_of_file(folder, folder.gguf(golden, edit)); },
      .fragments = std::move(fragments)};
}

// Where the value of a metadata key stands, behind the key and its type.
size_t value_of(const std::string& bytes, const std::string& key) {
  const size_t at = bytes.find(pack<uint64_t>(key.size()) + key);
  if (at == bytes.npos) throw std::runtime_error("no key " + key);
  return at + sizeof(uint64_t) + key.size() + sizeof(uint32_t);
}

// Where the type of a matrix stands: behind the name, the rank and two extents; the offset follows.
size_t matrix_type_of(const std::string& bytes, const std::string& tensor) {
  return value_of(bytes, tensor) + 2 * sizeof(uint64_t);
}

std::vector<Refusal> gguf_refusals() {
  const std::string matrix = "blk.0.attn_qkv.weight";
  const auto set_u32 = [](const std::string& key, uint32_t value) {
    return [=](std::string& bytes) { bytes.replace(value_of(bytes, key), 4, pack(value)); };
  };
  return {
      bad_gguf("WrongMagic", [](std::string& bytes) { bytes.replace(0, 4, "GGML"); },
               {"does not begin with the bytes `GGUF`", "is this a GGUF file?"}),
      bad_gguf("VersionOne", [](std::string& bytes) { bytes.replace(4, 4, pack<uint32_t>(1)); },
               {"version 1, only 2 and 3", "convert the model again"}),
      bad_gguf("VersionOfTheFuture",
               [](std::string& bytes) { bytes.replace(4, 4, pack<uint32_t>(9)); },
               {"version 9, only 2 and 3"}),
      bad_gguf("BigEndian",
               [](std::string& bytes) { bytes.replace(4, 4, pack<uint32_t>(0x03000000)); },
               {"big-endian"}),
      bad_gguf("EmptyFile", [](std::string& bytes) { bytes.clear(); }, {"does not begin with"}),
      bad_gguf("TruncatedMetadata", [](std::string& bytes) { bytes.resize(300); },
               {"is the download complete?"}),
      bad_gguf("TruncatedData", [](std::string& bytes) { bytes.resize(bytes.size() - 5000); },
               {"the file holds", "bytes of data", "is the download complete?"}),
      bad_gguf("HugeTensorCount",
               [](std::string& bytes) { bytes.replace(8, 8, pack(uint64_t{1} << 60)); },
               {"claims 1152921504606846976 tensors"}),
      bad_gguf("HugeMetadataCount",
               [](std::string& bytes) { bytes.replace(16, 8, pack(uint64_t{1} << 60)); },
               {"claims 1152921504606846976 metadata keys"}),
      bad_gguf("HugeStringLength",
               [](std::string& bytes) {
                 bytes.replace(value_of(bytes, "general.architecture"), 8, pack(uint64_t{1} << 62));
               },
               {"general.architecture"}),
      bad_gguf("UnsupportedQuantisation",
               [=](std::string& bytes) {
                 bytes.replace(matrix_type_of(bytes, matrix), 4, pack<uint32_t>(test::kGgmlQ2_K));
               },
               {matrix, "of type Q2_K, which is not supported", "re-quantise"}),
      bad_gguf("UnknownQuantisation",
               [=](std::string& bytes) {
                 bytes.replace(matrix_type_of(bytes, matrix), 4, pack<uint32_t>(4000));
               },
               {matrix, "unknown type 4000"}),
      bad_gguf("OffsetOutOfRange",
               [=](std::string& bytes) {
                 bytes.replace(matrix_type_of(bytes, matrix) + 4, 8, pack(uint64_t{1} << 40));
               },
               {matrix, "at offset 1099511627776"}),
      bad_gguf("OverlappingTensors",
               [=](std::string& bytes) {
                 bytes.replace(matrix_type_of(bytes, matrix) + 4, 8, pack(uint64_t{32}));
               },
               {"overlap"}),
      bad_gguf("HugeShape",
               [=](std::string& bytes) {
                 bytes.replace(matrix_type_of(bytes, matrix) - 16, 16,
                               pack(uint64_t{1} << 40) + pack(uint64_t{1} << 40));
               },
               {matrix, "shape is too large"}),
      bad_gguf("UnknownArchitecture",
               [](std::string& bytes) {
                 bytes.replace(value_of(bytes, "general.architecture") + 8, 4, "rwkv");
               },
               {"\"rwkv\"", "expected gpt2 or llama"}),
      bad_gguf(
          "MissingKey",
          [](std::string& bytes) { replace_once(bytes, "gpt2.block_count", "gpt2.clock_bount"); },
          {"no key `gpt2.block_count`, expected an integer"}),
      bad_gguf("KeyOfAnotherKind",
               [](std::string& bytes) {
                 const size_t value = value_of(bytes, "gpt2.block_count");
                 bytes.replace(value - 4, 4, pack<uint32_t>(test::kGgufF32));
               },
               {"`gpt2.block_count` is a float, expected an integer"}),
      bad_gguf("NoLayers", set_u32("gpt2.block_count", 0),
               {"`gpt2.block_count` is 0, expected 1 to"}),
      bad_gguf("HeadsDoNotDivideWidth", set_u32("gpt2.attention.head_count", 5),
               {"head_count does not divide embedding_length"}),
      bad_gguf("LlamaHeadsDoNotFit", set_u32("llama.attention.head_count", 7), {"heads"},
               "llama-f32.gguf"),
      bad_gguf("MissingTensor",
               [](std::string& bytes) {
                 replace_once(bytes, "blk.1.ffn_up.weight", "blk.1.ffn_ap.weight");
               },
               {"no tensor `blk.1.ffn_up.weight`"}),
      bad_gguf("NoTokenizer",
               [](std::string& bytes) {
                 replace_once(bytes, "tokenizer.ggml.model", "tokenizer.ggml.modus");
               },
               {"no key `tokenizer.ggml.model`"}),
      bad_gguf("EndTokenOutsideTheVocabulary", set_u32("tokenizer.ggml.eos_token_id", 5000),
               {"tokenizer.ggml.eos_token_id is 5000"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Gguf, Refuses, testing::ValuesIn(gguf_refusals()), name_of);

// ---- model paths ----

std::vector<Refusal> path_refusals() {
  return {
      {.name = "DoesNotExist",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, folder.file("none")); },
       .fragments = {"none: no such file or folder", "a Hugging Face model folder or a .gguf"}},
      {.name = "IsEmpty",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, ""); },
       .fragments = {"no such file or folder"}},
      {.name = "HoldsALineEnd",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, "two\nlines"); },
       .fragments = {"no such file or folder"}},
      {.name = "IsVeryLong",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, std::string(300, 'x')); },
       .fragments = {"no such file or folder"}},
      {.name = "IsAnotherKindOfFile",
       .build =
           [](ModelFolder& folder) {
             return eval_of_file(folder, folder.write("notes.txt", "shopping list"));
           },
       .fragments = {"notes.txt", "does not begin with the bytes `GGUF`"}},
      {.name = "IsOneFileOfTheFolder",
       .build =
           [](ModelFolder& folder) {
             return eval_of_file(folder, folder.file("model.safetensors"));
           },
       .fragments = {"is one file of a model folder", "the folder that holds config.json"}},
      {.name = "IsTheConfig",
       .build =
           [](ModelFolder& folder) { return eval_of_file(folder, folder.file("config.json")); },
       .fragments = {"is one file of a model folder"}},
      {.name = "IsADevice",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, "/dev/null"); },
       .fragments = {"/dev/null", "is not a regular file"}},
      {.name = "InspectRefusesToo",
       .build =
           [](ModelFolder& folder) {
             return Args{"inspect", "-m", folder.file("none")};
           },
       .fragments = {"no such file or folder"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Path, Refuses, testing::ValuesIn(path_refusals()), name_of);

// ---- command lines that make no sense ----

Refusal usage(std::string name, std::function<Args(ModelFolder&)> build,
              std::vector<std::string> fragments) {
  fragments.emplace_back("--help");
  return {.name = std::move(name),
          .build = std::move(build),
          .fragments = std::move(fragments),
          .code = 2};
}

Refusal bad_command_line(std::string name, const Args& args, std::vector<std::string> fragments) {
  return usage(
      std::move(name), [args](ModelFolder&) { return args; }, std::move(fragments));
}

Refusal bad_eval_flag(std::string name, const Args& more, std::vector<std::string> fragments) {
  return usage(
      std::move(name), [more](ModelFolder& folder) { return eval_of(folder, more); },
      std::move(fragments));
}

Refusal bad_generate_flag(std::string name, const Args& more, std::vector<std::string> fragments) {
  return usage(
      std::move(name),
      [more](ModelFolder& folder) {
        Args flags{"-p", "ab"};
        flags.insert(flags.end(), more.begin(), more.end());
        return generate_of(folder, flags);
      },
      std::move(fragments));
}

std::vector<Refusal> usage_refusals() {
  return {
      bad_command_line("UnknownCommand", {"evaluate"}, {"evaluate"}),
      bad_command_line("UnknownFlagBeforeTheCommand", {"--fast"}, {"--fast"}),
      bad_command_line("LineEndInAFlag", {"inspect", "-m", "x", "--a\nb"}, {"--a"}),
      bad_command_line("NoModel", {"eval", "-f", "text.txt"}, {"--model is required"}),
      bad_command_line("ModelWithoutValue", {"inspect", "-m"}, {"--model"}),
      bad_eval_flag("UnknownFlag", {"--fast"}, {"--fast"}),
      bad_eval_flag("StrayArgument", {"more.txt"}, {"more.txt"}),
      usage("EvalWithoutText",
            [](ModelFolder& folder) {
              return Args{"eval", "-m", folder.path()};
            },
            {"--file is required"}),
      bad_eval_flag("UnknownDtype", {"--dtype", "f8"}, {"--dtype", "f8", "bf16"}),
      bad_eval_flag("UnknownDevice", {"--device", "tpu"}, {"--device", "tpu", "cpu"}),
      bad_eval_flag("NegativeThreads", {"--threads", "-1"}, {"--threads", "-1"}),
      bad_eval_flag("ContextIsText", {"--context", "abc"}, {"--context", "abc"}),
      bad_eval_flag("ContextIsNegative", {"--context", "-5"}, {"--context", "-5"}),
      bad_eval_flag("ContextIsHuge", {"--context", "99999999999999999999"}, {"--context"}),
      bad_eval_flag("NegativeWindows", {"--windows", "-1"}, {"--windows", "-1"}),
      usage("NeitherPromptNorFile", [](ModelFolder& folder) { return generate_of(folder); },
            {"no prompt", "-p", "-f"}),
      bad_generate_flag("PromptAndFile", {"-f", "prompt.txt"}, {"not both"}),
      bad_generate_flag("NegativeLength", {"-n", "-1"}, {"--predict", "-1"}),
      bad_generate_flag("TopPOverOne", {"--top-p", "2"}, {"--top-p", "2"}),
      bad_generate_flag("TopPOfZero", {"--top-p", "0"}, {"--top-p", "0"}),
      bad_generate_flag("NegativeTopK", {"--top-k", "-1"}, {"--top-k", "-1"}),
      bad_generate_flag("MinPOverOne", {"--min-p", "1.5"}, {"--min-p", "1.5"}),
      bad_generate_flag("NegativeTemperature", {"--temperature", "-1"}, {"--temperature", "-1"}),
      bad_generate_flag("TemperatureIsNan", {"--temperature", "nan"}, {"--temperature", "nan"}),
      bad_generate_flag("TemperatureIsText", {"--temperature", "warm"}, {"--temperature", "warm"}),
      bad_generate_flag("PenaltyOfZero", {"--repetition-penalty", "0"},
                        {"--repetition-penalty", "0"}),
      bad_generate_flag("EmptyStop", {"--stop", ""}, {"stop", "empty"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Usage, Refuses, testing::ValuesIn(usage_refusals()), name_of);

// ---- refusals that need more than a line of the table ----

TEST(Refusals, NoCommandShowsTheHelp) {
  const RunResult result = run_program({});
  expect_no_crash(result);
  EXPECT_EQ(result.code, 2) << result;
  EXPECT_NE((result.out + result.err).find("sluice generate -m MODEL"), std::string::npos)
      << result;
}

TEST(Refusals, UnreadableFilesAreNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every file";
  ModelFolder folder;
  const auto lock = [&](const std::string& name) {
    fs::permissions(folder.file(name), fs::perms::none);
    return folder.file(name);
  };
  const auto unlock = [&](const std::string& name) {
    fs::permissions(folder.file(name), fs::perms::owner_read | fs::perms::owner_write);
  };
  const Args args = eval_of(folder);
  for (const std::string name :
       {"text.txt", "config.json", "model.safetensors", "tokenizer.json"}) {
    lock(name);
    expect_complaint(run_program(args), 1, {name});
    unlock(name);
  }
}

// Said before the work, not after hours of it.
TEST(Refusals, AResultsFileThatCannotBeWrittenIsRefusedAtOnce) {
  ModelFolder folder;
  const std::string missing = folder.file("no_folder/results.json");
  const RunResult result = run_program(eval_of(folder, {"--json", missing}));
  expect_complaint(result, 1, {"results.json", "cannot be written", "is the folder there"});
  EXPECT_EQ(result.out, "") << result;
}

TEST(Refusals, ResultsOverAFolderLeaveNothingBehind) {
  ModelFolder folder;
  const std::string taken = folder.file("results");
  fs::create_directory(taken);
  const RunResult result = run_program(eval_of(folder, {"--json", taken}));
  expect_complaint(result, 1, {"results", "cannot be written"});
  EXPECT_EQ(result.out, "") << result;
  EXPECT_FALSE(fs::exists(taken + ".part"));
}

std::string junk(size_t n_bytes) {
  std::mt19937 random(5);
  std::string bytes;
  while (bytes.size() < n_bytes) bytes += static_cast<char>(random() & 0xff);
  return bytes;
}

void expect_answer_or_complaint(const RunResult& result) {
  if (result.code == 0)
    expect_no_crash(result);
  else
    expect_complaint(result, 1, {});
}

// Bytes that are no text may be predicted or refused, by every kind of tokenizer.
TEST(Refusals, JunkForTextDoesNotCrash) {
  ModelFolder folder;
  constexpr int64_t kVocab = 1000;  // more than any golden tokenizer has
  folder.set_config("vocab_size", kVocab);
  folder.repeat_rows("transformer.wte.weight", kVocab);
  const std::string text = folder.write("junk.txt", junk(20'000) + std::string(5000, '\0'));
  const std::string prompt = folder.write("prompt.txt", junk(12));
  for (const char* name :
       {"gpt2", "llama3", "llama2", "unigram-bytes", "bert-uncased", "word-bpe"}) {
    SCOPED_TRACE(name);
    folder.remove("tokenizer_config.json");
    const fs::path tokenizer = ModelFolder::golden_file("tokenizers") / name;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      if (fs::exists(tokenizer / file)) folder.write(file, test::read_bytes(tokenizer / file));
    expect_answer_or_complaint(
        run_program({"eval", "-m", folder.path(), "-f", text, "--quiet", "--windows", "100"}));
    expect_answer_or_complaint(run_program({"generate", "-m", folder.path(), "-f", prompt, "-n",
                                            "3", "--json", folder.file("out.json")}));
  }
}

// Weights that are not numbers give scores that are not numbers: sorting and drawing must survive.
TEST(Refusals, WeightsThatAreNotNumbersDoNotCrash) {
  for (const size_t every : {1u, 3u, 7u}) {
    ModelFolder folder;
    folder.edit_tensors([&](json& header, std::string& data) {
      const size_t begin = header["transformer.wte.weight"]["data_offsets"][0];
      const std::string nan = pack(std::numeric_limits<float>::quiet_NaN());
      for (size_t row = 5; row < 64; row += every) data.replace(begin + row * 32 * 4, 4, nan);
    });
    for (const Args& more : {Args{}, Args{"--temperature", "1"},
                             Args{"--temperature", "1", "--top-k", "5", "--top-p", "0.9"}}) {
      Args flags{"-p", "ab", "--ignore-eos"};
      flags.insert(flags.end(), more.begin(), more.end());
      const RunResult result = run_program(generate_of(folder, flags));
      expect_no_crash(result);
    }
    const std::string results = folder.file("results.json");
    expect_no_crash(run_program(eval_of(folder, {"--quiet", "--json", results})));
  }
}

}  // namespace
}  // namespace sluice
