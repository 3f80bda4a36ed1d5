#include "io/safetensors.h"

#include <gtest/gtest.h>

#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using test::as_bytes;
using test::expect_error;
using test::f32_tensor;
using test::pack;
using test::pack_all;
using test::safetensors_bytes;
using test::safetensors_from_header;
using test::TempDir;

std::vector<float> values_of(const WeightStore& store, const std::string& name) {
  const StoredTensor& tensor = store.require(name);
  std::vector<float> values(static_cast<size_t>(tensor.shape.numel()));
  expand(tensor, 0, values);
  return values;
}

TEST(Safetensors, TensorsComeBackWithShapeAndValues) {
  const TempDir dir;
  const auto path =
      dir.write("m.safetensors",
                safetensors_bytes({f32_tensor("a", {2, 3}, {1, 2, 3, 4, 5, 6}),
                                   {"h", "F16", {2}, pack_all<uint16_t>({0x3c00, 0xc000})},
                                   {"b", "BF16", {2, 1}, pack_all<uint16_t>({0x3f80, 0xc000})},
                                   f32_tensor("scalar", {}, {7}),
                                   f32_tensor("nothing", {0, 5}, {})}));
  WeightStore store;
  add_safetensors(path, store);
  EXPECT_EQ(store.tensors().size(), 5u);
  EXPECT_EQ(store.require("a").shape, (Shape{2, 3}));
  EXPECT_EQ(values_of(store, "a"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(values_of(store, "h"), (std::vector<float>{1, -2}));
  EXPECT_EQ(values_of(store, "b"), (std::vector<float>{1, -2}));
  EXPECT_EQ(values_of(store, "scalar"), (std::vector<float>{7}));
  EXPECT_EQ(store.require("nothing").shape, (Shape{0, 5}));
}

TEST(Safetensors, MetadataSpacesAfterTheHeaderAndAnyOrderOfTensorsAreFine) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"data_offsets":[4,8],"shape":[1],"dtype":"F32"},)"
                             R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}    )";
  const std::string bytes = safetensors_from_header(header, pack_all<float>({1, 2}));
  WeightStore store;
  parse_safetensors(as_bytes(bytes), "m", store);
  EXPECT_EQ(values_of(store, "a"), (std::vector<float>{1}));
  EXPECT_EQ(values_of(store, "b"), (std::vector<float>{2}));
}

TEST(Safetensors, TensorsOfOtherTypesAreSkippedWhateverTheirRank) {
  const std::string bytes = safetensors_bytes({{"mask", "BOOL", {1, 1, 1, 2, 1}, "\1\1"},
                                               {"ids", "I64", {1}, std::string(8, '\0')},
                                               f32_tensor("w", {1}, {3})});
  WeightStore store;
  parse_safetensors(as_bytes(bytes), "m", store);
  EXPECT_EQ(store.tensors().size(), 1u);
  expect_error([&] { store.require("ids"); }, {"`ids` is of type I64"});
}

TEST(Safetensors, FileWithoutTensorsIsFine) {
  WeightStore store;
  const std::string bytes = safetensors_from_header("{}", "");
  parse_safetensors(as_bytes(bytes), "m", store);
  EXPECT_TRUE(store.tensors().empty());
}

struct BadSafetensorsFile {
  std::string name;
  std::string bytes;
  std::string expected;
};

// A header with one F32 tensor `w` of the given shape and offsets, and `data_bytes` of data.
std::string one_tensor(const std::string& shape, const std::string& offsets, size_t data_bytes) {
  return safetensors_from_header(
      R"({"w":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
      std::string(data_bytes, '\0'));
}

std::string two_tensors(const std::string& first, const std::string& second, size_t data_bytes) {
  return safetensors_from_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + first +
                                     R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" +
                                     second + "}}",
                                 std::string(data_bytes, '\0'));
}

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::string header_only(const std::string& header) { return safetensors_from_header(header, ""); }

std::vector<BadSafetensorsFile> bad_safetensors_files() {
  const std::string good = safetensors_bytes({f32_tensor("w", {2}, {1, 2})});
  const std::string w = R"("w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  return {
      {"Empty", "", "is 0 bytes long, too short"},
      {"LengthOnly", std::string(7, '\0'), "is 7 bytes long, too short"},
      {"HeaderOfZeroBytes", std::string(8, '\0'), "does not begin with `{`"},
      {"HeaderPastTheEnd", pack<uint64_t>(100) + "{}", "header length 100 is more than the 2"},
      {"HeaderOverTheLimit", pack<uint64_t>(100'000'001) + "{}", "over the limit of 100000000"},
      {"HeaderLengthOfAllOnes", pack<uint64_t>(~0ull) + "{}", "header length 18446744073709551615"},
      {"Gguf", "GGUF" + std::string(60, '\0'), "is a GGUF file"},
      {"LfsPointer", "version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"},
      {"NotJson", header_only("{\"w\": nope}"), "header: w: not valid JSON"},
      {"CutJson", header_only("{\"w\":"), "header: w: not valid JSON"},
      {"TwoObjects", header_only("{}{}"), "header: not valid JSON"},
      {"NotUtf8", header_only("{\"\xff\xfe\":{}}"), "header: not valid JSON"},
      {"LeadingSpace", header_only(" {}"), "does not begin with `{`"},
      {"ArrayHeader", header_only("[]"), "does not begin with `{`"},
      {"EntryIsANumber", header_only(R"({"w":5})"), "header: w: expected an object, found 5"},
      {"EntryIsNull", header_only(R"({"w":null})"), "header: w: expected an object, found null"},
      {"EntryIsAnArray", header_only(R"({"w":[]})"),
       "header: w: expected an object, found an array"},
      {"EntryIsEmpty", header_only(R"({"w":{}})"), "header: w: has no `dtype`"},
      {"NoShape", header_only(R"({"w":{"dtype":"F32","data_offsets":[0,0]}})"),
       "header: w: has no `shape`"},
      {"NoOffsets", header_only(R"({"w":{"dtype":"F32","shape":[0]}})"),
       "header: w: has no `data_offsets`"},
      {"UnknownField", header_only(R"({"w":{"dtyp":"F32"}})"),
       "header: w.dtyp: is not a known key"},
      {"FieldTwice", header_only(R"({"w":{"dtype":"F32","dtype":"F32"}})"),
       "header: w.dtype: is there twice"},
      {"DtypeIsANumber", header_only(R"({"w":{"dtype":32}})"),
       "header: w.dtype: expected a string, found 32"},
      {"ShapeIsAString", header_only(R"({"w":{"dtype":"F32","shape":"2"}})"),
       "header: w.shape: expected an array, found \"2\""},
      {"ShapeHoldsAnArray", header_only(R"({"w":{"dtype":"F32","shape":[[2]]}})"),
       "header: w.shape[0]: expected an integer of 0 or more, found an array"},
      {"ShapeHoldsABool", header_only(R"({"w":{"dtype":"F32","shape":[true]}})"),
       "header: w.shape[0]: expected an integer of 0 or more, found true"},
      {"DeepNesting", header_only("{\"w\":" + std::string(100'000, '[')),
       "JSON nests deeper than 64 levels"},
      {"MetadataHoldsANumber", header_only(R"({"__metadata__":{"n":1}})"),
       "header: __metadata__.n: expected a string, found 1"},
      {"NameTwice", header_only("{" + w + "," + w + "}"), "header: w: is there twice"},
      {"UnknownDtype", header_only(R"({"w":{"dtype":"F31","shape":[0],"data_offsets":[0,0]}})"),
       "tensor `w`: unknown dtype `F31`"},
      {"NegativeExtent", one_tensor("[-1]", "[0,4]", 4),
       "header: w.shape[0]: expected an integer of 0 or more, found -1"},
      {"FractionalExtent", one_tensor("[1.5]", "[0,4]", 4),
       "header: w.shape[0]: expected an integer of 0 or more, found 1.5"},
      {"HugeExtent", one_tensor("[18446744073709551615]", "[0,4]", 4),
       "w.shape[0]: expected an integer of 0 or more, found 18446744073709551615"},
      {"OverflowingShape", one_tensor("[4611686018427387904,4]", "[0,4]", 4),
       "tensor `w`: shape is too large"},
      {"OverflowingShapeAfterZero", one_tensor("[0,4611686018427387904,4]", "[0,0]", 0),
       "tensor `w`: shape is too large"},
      {"OverflowingBytes", one_tensor("[9223372036854775807]", "[0,4]", 4),
       "tensor `w`: shape is too large"},
      {"FiveAxes", one_tensor("[1,1,1,1,1]", "[0,4]", 4), "tensor `w` has 5 axes, at most 4"},
      {"FortyAxes", one_tensor("[1" + repeat(",1", 39) + "]", "[0,4]", 4),
       "header: w.shape: has 40 axes, more than 32"},
      {"LongNumber", one_tensor("[1" + repeat("0", 500) + "]", "[0,4]", 4), "not valid JSON"},
      {"NegativeOffset", one_tensor("[1]", "[-4,0]", 4),
       "w.data_offsets[0]: expected an integer of 0 or more, found -4"},
      {"FractionalOffset", one_tensor("[1]", "[0,4.0]", 4),
       "w.data_offsets[1]: expected an integer of 0 or more, found 4.0"},
      {"HugeOffset", one_tensor("[1]", "[0,1e300]", 4),
       "w.data_offsets[1]: expected an integer of 0 or more, found 1e+300"},
      {"OneOffset", one_tensor("[1]", "[4]", 4),
       "header: w.data_offsets: does not have two elements"},
      {"ThreeOffsets", one_tensor("[1]", "[0,4,8]", 4),
       "header: w.data_offsets: does not have two elements"},
      {"Backwards", one_tensor("[1]", "[4,0]", 4), "bytes 4 to 0 run backwards"},
      {"OutOfRange", one_tensor("[1]", "[4,8]", 4), "bytes 4 to 8 are out of range"},
      {"TooFewBytes", one_tensor("[2]", "[0,4]", 4),
       "bytes 0 to 4 do not match its shape, which takes 8 bytes as F32"},
      {"TooManyBytes", one_tensor("[1]", "[0,8]", 8), "do not match its shape"},
      {"Overlap", two_tensors("[0,4]", "[2,6]", 6), "tensors `a` and `b` overlap"},
      {"SameBytes", two_tensors("[0,4]", "[0,4]", 4), "tensors `a` and `b` overlap"},
      {"HoleBetween", two_tensors("[0,4]", "[8,12]", 12), "no tensor covers bytes 4 to 8"},
      {"HoleOfOneByte", two_tensors("[0,4]", "[5,9]", 9), "no tensor covers bytes 4 to 5"},
      {"HoleBefore", one_tensor("[1]", "[4,8]", 8), "no tensor covers bytes 0 to 4"},
      {"BytesAfter", good + "x", "no tensor covers bytes 8 to 9"},
      {"Truncated", good.substr(0, good.size() - 1), "bytes 0 to 8 are out of range"},
      {"NewlineInName", header_only("{\"a\\nb\":5}"),
       "header: `a\\x0ab`: expected an object, found 5"},
      {"LongName", header_only("{\"" + std::string(5000, 'n') + "\":5}"),
       "... (5000 bytes)`: expected an object"},
  };
}

class BadSafetensors : public testing::TestWithParam<BadSafetensorsFile> {};

TEST_P(BadSafetensors, IsRefusedOnOneLineThatNamesTheFile) {
  WeightStore store;
  const std::string& bytes = GetParam().bytes;
  expect_error([&] { parse_safetensors(as_bytes(bytes), "bad.safetensors", store); },
               {"bad.safetensors: ", GetParam().expected});
}

INSTANTIATE_TEST_SUITE_P(, BadSafetensors, testing::ValuesIn(bad_safetensors_files()),
                         [](const auto& param) { return param.param.name; });

// ---- folders ----

std::string index_json(const std::string& weight_map) {
  return R"({"metadata":{"total_size":8},"weight_map":)" + weight_map + "}";
}

TEST(SafetensorsFolder, SingleFileIsRead) {
  const TempDir dir;
  dir.write("model.safetensors", safetensors_bytes({f32_tensor("w", {1}, {3})}));
  EXPECT_EQ(values_of(open_safetensors_folder(dir.path()), "w"), (std::vector<float>{3}));
}

TEST(SafetensorsFolder, ShardsAreReadTogether) {
  const TempDir dir;
  dir.write("one.safetensors", safetensors_bytes({f32_tensor("a", {1}, {1})}));
  dir.write("two.safetensors", safetensors_bytes({f32_tensor("b", {1}, {2})}));
  dir.write("model.safetensors.index.json",
            index_json(R"({"a":"one.safetensors","b":"two.safetensors"})"));
  const WeightStore store = open_safetensors_folder(dir.path());
  EXPECT_EQ(values_of(store, "a"), (std::vector<float>{1}));
  EXPECT_EQ(values_of(store, "b"), (std::vector<float>{2}));
  expect_error([&] { store.require("c"); }, {"one.safetensors and 1 more: no tensor `c`"});
}

TEST(SafetensorsFolder, FolderWithoutWeightsIsRefused) {
  const TempDir dir;
  expect_error([&] { open_safetensors_folder(dir.path()); }, {"holds neither model.safetensors"});
  expect_error([&] { open_safetensors_folder(dir.path() / "none"); }, {"none: is not a directory"});
}

TEST(SafetensorsFolder, PickledWeightsGetTheirOwnHint) {
  const TempDir dir;
  dir.write("pytorch_model.bin", "x");
  try {
    open_safetensors_folder(dir.path());
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_NE(error.hint().find("pytorch_model.bin"), std::string::npos) << error.hint();
  }
}

TEST(SafetensorsFolder, TensorInTwoShardsIsRefused) {
  const TempDir dir;
  dir.write("one.safetensors", safetensors_bytes({f32_tensor("a", {1}, {1})}));
  dir.write("two.safetensors",
            safetensors_bytes({f32_tensor("a", {1}, {2}), f32_tensor("b", {1}, {2})}));
  dir.write("model.safetensors.index.json",
            index_json(R"({"a":"one.safetensors","b":"two.safetensors"})"));
  expect_error([&] { open_safetensors_folder(dir.path()); },
               {"two.safetensors: tensor `a` is there twice"});
}

struct BadIndex {
  std::string name;
  std::string index;
  std::string expected;
};

std::vector<BadIndex> bad_indices() {
  return {
      {"Empty", "", "is empty, expected JSON"},
      {"NotJson", "{", "index.json: not valid JSON"},
      {"DeepNesting", std::string(100'000, '['), "JSON nests deeper than 64"},
      {"NotAnObject", "[1]", "index.json: expected an object, found an array"},
      {"NoWeightMap", "{}", "index.json: has no `weight_map`"},
      {"WeightMapIsAnArray", index_json("[]"), "weight_map: expected an object, found an array"},
      {"EmptyWeightMap", index_json("{}"), "weight_map: names no tensors"},
      {"NumberForAFile", index_json(R"({"a":7})"), "weight_map.a: expected a string, found 7"},
      {"ObjectForAFile", index_json(R"({"a":{}})"),
       "weight_map.a: expected a string, found an object"},
      {"ParentFolder", index_json(R"({"a":"../one.safetensors"})"),
       "weight_map.a: expected a file name without a folder, found \"../one"},
      {"AbsolutePath", index_json(R"({"a":"/etc/passwd"})"), "found \"/etc/passwd\""},
      {"DotDot", index_json(R"({"a":".."})"), "found \"..\""},
      {"EmptyName", index_json(R"({"a":""})"), "found \"\""},
      {"NulInName", index_json(R"({"a":"one.safetensors\u0000"})"), "safetensors\\x00\""},
      {"MissingShard", index_json(R"({"a":"none.safetensors"})"),
       "shard `none.safetensors` is missing"},
      {"TensorNotInItsShard", index_json(R"({"b":"one.safetensors"})"),
       "one.safetensors: no tensor `b`, which model.safetensors.index.json places there"},
  };
}

class BadSafetensorsIndex : public testing::TestWithParam<BadIndex> {};

TEST_P(BadSafetensorsIndex, IsRefusedOnOneLine) {
  const TempDir dir;
  dir.write("one.safetensors", safetensors_bytes({f32_tensor("a", {1}, {1})}));
  dir.write("model.safetensors.index.json", GetParam().index);
  expect_error([&] { open_safetensors_folder(dir.path()); }, {GetParam().expected});
}

INSTANTIATE_TEST_SUITE_P(, BadSafetensorsIndex, testing::ValuesIn(bad_indices()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace sluice::impl
