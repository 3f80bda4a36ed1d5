// Damaged or foreign safetensors and shard indexes.

#include <unistd.h>

#include <limits>
#include <random>

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace test;

class RefusesWeights : public testing::TestWithParam<Refusal> {};

TEST_P(RefusesWeights, WithOneLineAndAHint) { expect_refused(GetParam()); }

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
          {"header: ", "not valid JSON"}),
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
                  {kBias, "shape[0]: expected an integer of 0 or more, found -32"}),
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
       .fragments = {"token_type_embeddings.weight is ()", "expected a row for each token type"},
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

INSTANTIATE_TEST_SUITE_P(Safetensors, RefusesWeights, testing::ValuesIn(safetensors_refusals()),
                         name_of);

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
                {kIndex, "expected a file name without a folder, found \"../x.safetensors\""}),
      bad_index("ShardIsANumber", [](ModelFolder& folder) { place_first_tensor(folder, 7); },
                {kIndex, "expected a string, found 7"}),
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

INSTANTIATE_TEST_SUITE_P(Index, RefusesWeights, testing::ValuesIn(index_refusals()), name_of);

}  // namespace
}  // namespace sluice::impl
