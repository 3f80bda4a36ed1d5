#include "io/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using namespace test;  // the writer's names are used on every line

GgufTensor one_row(std::string name, std::optional<uint64_t> offset = {}) {
  return {std::move(name), {2}, kGgmlF32, pack_all<float>({1, 2}), offset};
}

TEST(Gguf, MetadataComesBackByType) {
  GgufWriter writer;
  writer.string("general.architecture", "llama")
      .u32("llama.block_count", 22)
      .f32("llama.rope.freq_base", 10000.0f)
      .boolean("tokenizer.ggml.add_bos_token", true)
      .strings("tokenizer.ggml.tokens", {"a", "", "\xff\n"})
      .f32s("tokenizer.ggml.scores", {0.5f, -1.0f})
      .i32s("tokenizer.ggml.token_type", {1, -3})
      .raw("u8", kGgufU8, pack<uint8_t>(200))
      .raw("i8", kGgufI8, pack<int8_t>(-100))
      .raw("u16", kGgufU16, pack<uint16_t>(60000))
      .raw("i16", kGgufI16, pack<int16_t>(-30000))
      .raw("i32", kGgufI32, pack<int32_t>(-5))
      .raw("u64", kGgufU64, pack<uint64_t>(1ull << 62))
      .raw("i64", kGgufI64, pack<int64_t>(-(1ll << 62)))
      .raw("f64", kGgufF64, pack<double>(0.1))
      .array("bools", kGgufBool, 2, std::string("\1\0", 2))
      .array("none", kGgufU64, 0, "");
  const std::string bytes = writer.bytes();
  const GgufFile file = parse_gguf(as_bytes(bytes), "m.gguf");
  EXPECT_EQ(file.require_string("general.architecture"), "llama");
  EXPECT_EQ(file.require_int("llama.block_count"), 22);
  EXPECT_EQ(file.require_float("llama.rope.freq_base"), 10000.0);
  EXPECT_EQ(file.require_float("llama.block_count"), 22.0);
  EXPECT_EQ(file.find_bool("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(*file.find_strings("tokenizer.ggml.tokens"),
            (std::vector<std::string>{"a", "", "\xff\n"}));
  EXPECT_EQ(*file.find_floats("tokenizer.ggml.scores"), (std::vector<double>{0.5, -1.0}));
  EXPECT_EQ(*file.find_ints("tokenizer.ggml.token_type"), (std::vector<int64_t>{1, -3}));
  EXPECT_EQ(file.require_int("u8"), 200);
  EXPECT_EQ(file.require_int("i8"), -100);
  EXPECT_EQ(file.require_int("u16"), 60000);
  EXPECT_EQ(file.require_int("i16"), -30000);
  EXPECT_EQ(file.require_int("i32"), -5);
  EXPECT_EQ(file.require_int("u64"), 1ll << 62);
  EXPECT_EQ(file.require_int("i64"), -(1ll << 62));
  EXPECT_EQ(file.require_float("f64"), 0.1);
  EXPECT_EQ(std::get<std::vector<bool>>(*file.find("bools")), (std::vector<bool>{true, false}));
  EXPECT_TRUE(file.find_ints("none")->empty());
}

TEST(Gguf, AbsentKeysAndKeysOfAnotherTypeAreTold) {
  GgufWriter writer;
  writer.string("name", "x").u32("count", 3).f32("bad", std::numeric_limits<float>::quiet_NaN());
  const std::string bytes = writer.bytes();
  const GgufFile file = parse_gguf(as_bytes(bytes), "m.gguf");
  EXPECT_EQ(file.find_int("none"), std::nullopt);
  EXPECT_EQ(file.find_strings("none"), nullptr);
  expect_error([&] { file.require_int("none"); }, {"m.gguf: no key `none`, expected an integer"});
  expect_error([&] { file.require_float("none"); }, {"m.gguf: no key `none`, expected a float"});
  expect_error([&] { file.require_string("none"); }, {"m.gguf: no key `none`, expected a string"});
  expect_error([&] { file.require_int("name"); },
               {"m.gguf: key `name` is a string, expected an integer"});
  expect_error([&] { file.find_int("name"); }, {"key `name` is a string, expected an integer"});
  expect_error([&] { file.find_float("name"); }, {"key `name` is a string, expected a float"});
  expect_error([&] { file.find_bool("count"); }, {"key `count` is an integer, expected a bool"});
  expect_error([&] { file.find_strings("count"); }, {"`count` is an integer, expected a list"});
  expect_error([&] { file.require_float("bad"); }, {"key `bad` is not a finite number"});
}

TEST(Gguf, TensorsComeBackWithTheSlowestAxisFirst) {
  const TempDir dir;
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer;
    writer.version = version;
    writer.tensor({"m", {3, 2}, kGgmlF32, pack_all<float>({1, 2, 3, 4, 5, 6}), {}})
        .tensor({"h", {2}, kGgmlF16, pack_all<uint16_t>({0x3c00, 0xc000}), {}})
        .tensor({"b", {2}, kGgmlBF16, pack_all<uint16_t>({0x3f80, 0xc000}), {}})
        .tensor({"q", {32, 2}, kGgmlQ8_0, std::string(68, '\0'), {}});
    const GgufFile file = open_gguf(dir.write("m.gguf", writer.bytes()));
    EXPECT_EQ(file.path, dir.path() / "m.gguf");
    EXPECT_EQ(file.weights.tensors().size(), 4u);
    EXPECT_EQ(file.weights.require("m").shape, (Shape{2, 3}));
    EXPECT_EQ(file.weights.require("q").shape, (Shape{2, 32}));
    EXPECT_EQ(file.weights.require("q").dtype, DType::kQ8_0);
    std::vector<float> values(6);
    expand(file.weights.require("m"), 0, values);
    EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  }
}

TEST(Gguf, AlignmentOfTheFileIsUsed) {
  GgufWriter writer;
  writer.alignment = 128;
  writer.u32("general.alignment", 128).tensor(one_row("a")).tensor(one_row("b"));
  const std::string bytes = writer.bytes();
  const GgufFile file = parse_gguf(as_bytes(bytes), "m.gguf");
  std::vector<float> values(2);
  expand(file.weights.require("b"), 0, values);
  EXPECT_EQ(values, (std::vector<float>{1, 2}));
}

TEST(Gguf, FileWithoutTensorsMayEndAfterItsMetadata) {
  GgufWriter writer;
  writer.alignment = 1;  // no padding at the end
  writer.string("general.architecture", "llama");
  const std::string bytes = writer.bytes();
  EXPECT_TRUE(parse_gguf(as_bytes(bytes), "m.gguf").weights.tensors().empty());
}

TEST(Gguf, EveryProperPrefixOfAFileIsRefused) {
  GgufWriter writer;
  writer.string("general.architecture", "llama")
      .strings("tokens", {"a", "bc"})
      .f32s("scores", {1, 2})
      .tensor(one_row("a"))
      .tensor(one_row("b"));
  const std::string bytes = writer.bytes();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::string cut = bytes.substr(0, length);
    EXPECT_THROW(parse_gguf(as_bytes(cut), "m.gguf"), Error) << length;
  }
  EXPECT_NO_THROW(parse_gguf(as_bytes(bytes), "m.gguf"));
}

// A sparse file: it takes no room on the disk, and the string is refused before it is read.
TEST(Gguf, MetadataPastTheLimitIsRefusedUnread) {
  const TempDir dir;
  GgufWriter writer;
  writer.raw("a", kGgufString, pack<uint64_t>(260ull << 20));
  const auto path = dir.write("long.gguf", writer.bytes());
  std::filesystem::resize_file(path, 300ull << 20);
  expect_error([&] { open_gguf(path); }, {"long.gguf: key `a` reaches past the first 268435456"});
}

struct BadGgufFile {
  std::string name;
  std::string bytes;
  std::string expected;
};

template <typename F>
BadGgufFile bad(std::string name, std::string expected, F&& change) {
  GgufWriter writer;
  change(writer);
  return {std::move(name), writer.bytes(), std::move(expected)};
}

std::vector<BadGgufFile> bad_gguf_files() {
  using W = GgufWriter;
  const std::string row = pack_all<float>({1, 2});
  return {
      {"Empty", "", "does not begin with the bytes `GGUF`"},
      {"MagicOnly", "GGUF", "ends inside the version"},
      {"LfsPointer", "version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"},
      bad("WrongMagic", "does not begin with the bytes `GGUF`", [](W& w) { w.magic = "GGML"; }),
      bad("Version1", "is of GGUF version 1", [](W& w) { w.version = 1; }),
      bad("Version4", "is of GGUF version 4", [](W& w) { w.version = 4; }),
      bad("Version0", "is of GGUF version 0", [](W& w) { w.version = 0; }),
      bad("BigEndian", "is a big-endian GGUF file", [](W& w) { w.version = 0x03000000; }),
      bad("HugeTensorCount", "claims 18446744073709551615 tensors",
          [](W& w) { w.n_tensors = ~0ull; }),
      bad("HugeMetadataCount", "claims 1152921504606846976 metadata keys",
          [](W& w) { w.n_pairs = 1ull << 60; }),
      bad("OneKeyTooMany", "",
          [](W& w) {
            w.u32("a", 1).u32("b", 2);
            w.n_pairs = 3;
          }),
      bad("KeyTwice", "key `a` is there twice", [](W& w) { w.u32("a", 1).u32("a", 1); }),
      bad("KeyWithNewline", "key `a\\x0a` is of unknown value type 13",
          [](W& w) { w.raw("a\n", 13, ""); }),
      bad("UnknownValueType", "key `a` is of unknown value type 4294967295",
          [](W& w) { w.raw("a", ~0u, ""); }),
      bad("StringPastTheEnd", "ends inside key `a`: 18446744073709551615 bytes wanted",
          [](W& w) { w.raw("a", kGgufString, pack(~0ull)); }),
      bad("BoolOfTwo", "key `a` is 2, expected a bool", [](W& w) { w.raw("a", kGgufBool, "\2"); }),
      bad("Uint64OverInt64", "key `a` is 9223372036854775808, over 2^63 - 1",
          [](W& w) { w.raw("a", kGgufU64, pack(1ull << 63)); }),
      bad("ArrayOfArrays", "key `a` is an array of arrays",
          [](W& w) { w.array("a", kGgufArray, 1, pack(kGgufU8) + pack<uint64_t>(0)); }),
      bad("ArrayOfUnknownType", "key `a` is an array of unknown value type 99",
          [](W& w) { w.array("a", 99, 1, "x"); }),
      bad("HugeArray", "key `a` claims 1152921504606846976 elements",
          [](W& w) { w.array("a", kGgufU8, 1ull << 60, ""); }),
      bad("HugeStringArray", "key `a` claims 1000 elements",
          [](W& w) { w.array("a", kGgufString, 1000, ""); }),
      bad("OverflowingArray", "claims 4611686018427387905 elements",
          [](W& w) { w.array("a", kGgufU32, (1ull << 62) + 1, pack<uint32_t>(1)); }),
      bad("TooManyArrayElements", "more than 16777216",
          [](W& w) {
            w.array("a", kGgufU8, 1 << 23, std::string(1 << 23, 'x'))
                .array("b", kGgufU8, (1 << 23) + 1, std::string((1 << 23) + 1, 'x'));
          }),
      bad("AlignmentZero", "`general.alignment` is 0", [](W& w) { w.u32("general.alignment", 0); }),
      bad("AlignmentOdd", "`general.alignment` is 33",
          [](W& w) { w.u32("general.alignment", 33); }),
      bad("AlignmentHuge", "`general.alignment` is 2147483648",
          [](W& w) { w.u32("general.alignment", 1u << 31); }),
      bad("AlignmentNegative", "`general.alignment` is -32",
          [](W& w) { w.raw("general.alignment", kGgufI32, pack<int32_t>(-32)); }),
      bad("AlignmentIsAString", "`general.alignment` is a string",
          [](W& w) { w.string("general.alignment", "32"); }),
      bad("Split", "is one of 3 parts of a split model", [](W& w) { w.u32("split.count", 3); }),
      bad("TensorTwice", "tensor `a` is there twice",
          [](W& w) { w.tensor(one_row("a")).tensor(one_row("a")); }),
      bad("NoAxes", "tensor `a` has 0 axes",
          [&](W& w) {
            w.tensor({"a", {}, kGgmlF32, row, {}});
          }),
      bad("FiveAxes", "tensor `a` has 5 axes",
          [&](W& w) {
            w.tensor({"a", {1, 1, 1, 1, 1}, kGgmlF32, row, {}});
          }),
      bad("ZeroExtent", "tensor `a` has an axis of 0 elements",
          [&](W& w) {
            w.tensor({"a", {2, 0}, kGgmlF32, row, {}});
          }),
      bad("NegativeExtent", "tensor `a` has an axis of 18446744073709551615 elements",
          [&](W& w) {
            w.tensor({"a", {~0ull}, kGgmlF32, row, {}});
          }),
      bad("OverflowingShape", "tensor `a`: shape is too large",
          [&](W& w) {
            w.tensor({"a", {1ull << 32, 1ull << 32}, kGgmlF32, row, {}});
          }),
      bad("OverflowingBytes", "tensor `a`: shape is too large",
          [&](W& w) {
            w.tensor({"a", {1ull << 62}, kGgmlF32, row, {}});
          }),
      bad("Q2K", "tensor `a` is of type Q2_K, which is not supported",
          [&](W& w) {
            w.tensor({"a", {256}, kGgmlQ2_K, row, {}});
          }),
      bad("IQ4NL", "tensor `a` is of type IQ4_NL, which is not supported",
          [&](W& w) {
            w.tensor({"a", {256}, 20, row, {}});
          }),
      bad("UnknownTensorType", "tensor `a` is of unknown type 4000",
          [&](W& w) {
            w.tensor({"a", {2}, 4000, row, {}});
          }),
      bad("RemovedTensorType", "tensor `a` is of unknown type 4",
          [&](W& w) {
            w.tensor({"a", {32}, 4, row, {}});
          }),
      bad("RowsNotInBlocks", "tensor `a` has rows of 48 elements, not a multiple of 32",
          [&](W& w) {
            w.tensor({"a", {48, 2}, kGgmlQ8_0, std::string(102, 'x'), {}});
          }),
      bad("RowsNotInLargeBlocks", "tensor `a` has rows of 128 elements, not a multiple of 256",
          [&](W& w) {
            w.tensor({"a", {128, 2}, kGgmlQ4_K, std::string(144, 'x'), {}});
          }),
      bad("OffsetNotAligned", "tensor `a` is at offset 8, not a multiple of the alignment 32",
          [&](W& w) { w.tensor(one_row("a", 8)); }),
      bad("OffsetPastTheEnd", "tensor `a` needs 8 bytes at offset 64, the file holds 8 bytes",
          [&](W& w) { w.tensor(one_row("a", 64)); }),
      bad("HugeOffset", "tensor `a` is at offset 18446744073709551584",
          [&](W& w) { w.tensor(one_row("a", ~31ull)); }),
      bad("LargestOffset", "tensor `a` needs 8 bytes at offset 9223372036854775776",
          [&](W& w) { w.tensor(one_row("a", (1ull << 63) - 32)); }),
      bad("DataTooShort", "tensor `a` needs 16 bytes at offset 0, the file holds 8 bytes",
          [&](W& w) {
            w.tensor({"a", {4}, kGgmlF32, row, {}});
          }),
      bad("Overlap", "tensors `a` and `b` overlap",
          [&](W& w) { w.tensor(one_row("a", 0)).tensor(one_row("b", 0)); }),
      bad("OverlapAcrossBlocks", "tensors `a` and `b` overlap",
          [&](W& w) {
            w.tensor({"a", {16}, kGgmlF32, std::string(64, 'x'), {}}).tensor(one_row("b", 32));
          }),
  };
}

class BadGguf : public testing::TestWithParam<BadGgufFile> {};

TEST_P(BadGguf, IsRefusedOnOneLineThatNamesTheFile) {
  const std::string& bytes = GetParam().bytes;
  expect_error([&] { parse_gguf(as_bytes(bytes), "bad.gguf"); },
               {"bad.gguf: ", GetParam().expected});
}

INSTANTIATE_TEST_SUITE_P(, BadGguf, testing::ValuesIn(bad_gguf_files()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace sluice::impl
