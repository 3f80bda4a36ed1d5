// Damaged or foreign GGUF files, and paths that are no model.

#include <unistd.h>

#include <cstring>
#include <limits>
#include <random>

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace test;

class RefusesGguf : public testing::TestWithParam<Refusal> {};

TEST_P(RefusesGguf, WithOneLineAndAHint) { expect_refused(GetParam()); }

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
  // Four MiB more, a multiple of every alignment, so that the data stays where it belongs.
  const auto lengthen = [](const std::string& key) {
    return [=](std::string& bytes) {
      const size_t at = value_of(bytes, key);
      uint64_t size = 0;
      std::memcpy(&size, bytes.data() + at, sizeof(size));
      bytes.insert(at + sizeof(size) + size, 4 << 20, 'x');
      bytes.replace(at, sizeof(size), pack<uint64_t>(size + (4 << 20)));
    };
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
               {"`rwkv`", "expected gemma2, gemma3, gpt2, gptneox, llama"}),
      bad_gguf("LongArchitecture", lengthen("general.architecture"),
               {"`gpt2xxx", "... (4194308 bytes)`, expected gemma2, gemma3, gpt2, gptneox, llama"}),
      bad_gguf("LongTokenizer", lengthen("tokenizer.ggml.model"),
               {"`gpt2xxx", "... (4194308 bytes)`: not supported"}),
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

INSTANTIATE_TEST_SUITE_P(Gguf, RefusesGguf, testing::ValuesIn(gguf_refusals()), name_of);

// ---- model paths ----

std::vector<Refusal> path_refusals() {
  return {
      {.name = "DoesNotExist",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, folder.file("none")); },
       .fragments = {"none: no such file or folder", "a Hugging Face model folder or a .gguf"}},
      {.name = "IsEmpty",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, ""); },
       .fragments = {"--model", "empty"},
       .code = 2},
      {.name = "HoldsALineEnd",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, "two\nlines"); },
       .fragments = {"no such file or folder"}},
      {.name = "IsVeryLong",
       .build = [](ModelFolder& folder) { return eval_of_file(folder, std::string(300, 'x')); },
       .fragments = {"cannot open: File name too long"}},
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

INSTANTIATE_TEST_SUITE_P(Path, RefusesGguf, testing::ValuesIn(path_refusals()), name_of);

}  // namespace
}  // namespace sluice::impl
