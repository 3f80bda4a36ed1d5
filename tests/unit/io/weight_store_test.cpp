#include "io/weight_store.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using test::as_bytes;
using test::expect_error;
using test::pack_all;

StoredTensor tensor_of(std::string name, DType dtype, Shape shape, const std::string& data) {
  return {std::move(name), dtype, shape, as_bytes(data)};
}

TEST(WeightStore, FindsWhatWasAdded) {
  const std::string data(24, '\0');
  WeightStore store;
  store.add(tensor_of("a", DType::kF32, {2, 3}, data));
  ASSERT_NE(store.find("a"), nullptr);
  EXPECT_EQ(store.find("b"), nullptr);
  EXPECT_EQ(store.require("a").shape, (Shape{2, 3}));
  EXPECT_EQ(store.total_bytes(), 24);
}

TEST(WeightStore, RefusesANameTwice) {
  WeightStore store;
  store.add(tensor_of("a", DType::kF32, {0}, ""));
  expect_error([&] { store.add(tensor_of("a", DType::kF32, {0}, "")); },
               {"tensor `a` is there twice"});
  expect_error([&] { store.add_unreadable("a", "I64"); }, {"tensor `a` is there twice"});
}

TEST(WeightStore, MissingTensorComesWithTheNearestNames) {
  WeightStore store;
  for (const char* name : {"transformer.h.0.attn.c_attn.weight", "transformer.wte.weight",
                           "transformer.h.1.attn.c_attn.weight", "unrelated", "other"})
    store.add(tensor_of(name, DType::kF32, {0}, ""));
  const std::string message =
      expect_error([&] { store.require("h.0.attn.c_attn.weight"); },
                   {"no tensor `h.0.attn.c_attn.weight`; nearest: `transformer.h.0.attn.c_attn"});
  EXPECT_EQ(message.find("unrelated"), message.npos);
}

TEST(WeightStore, EmptyStoreSaysSo) {
  expect_error([] { WeightStore().require("wte"); }, {"no tensor `wte`, nor any other"});
}

TEST(WeightStore, UnreadableTensorIsNamedWithItsType) {
  WeightStore store;
  store.add_unreadable("wte", "F64");
  EXPECT_EQ(store.find("wte"), nullptr);
  expect_error([&] { store.require("wte"); }, {"tensor `wte` is of type F64"});
}

TEST(Expand, PlainTypesGiveTheirValuesAtAnyAlignment) {
  // 1, -2, 0.5, 2^-24 (subnormal as f16; rounds to itself as bf16)
  const std::vector<float> expected = {1.0f, -2.0f, 0.5f, 0x1p-24f};
  const std::string f32 = pack_all(expected);
  const std::string f16 = pack_all<uint16_t>({0x3c00, 0xc000, 0x3800, 0x0001});
  const std::string bf16 = pack_all<uint16_t>({0x3f80, 0xc000, 0x3f00, 0x3380});
  for (const auto& [dtype, data] :
       {std::pair{DType::kF32, f32}, {DType::kF16, f16}, {DType::kBF16, bf16}}) {
    for (size_t shift = 0; shift < 4; ++shift) {
      const std::string moved = std::string(shift, '?') + data;
      const StoredTensor tensor{"t", dtype, Shape{2, 2}, as_bytes(moved).subspan(shift)};
      std::vector<float> values(4);
      expand(tensor, 0, values);
      EXPECT_EQ(values, expected) << dtype_name(dtype) << " shifted by " << shift;
    }
  }
}

TEST(Expand, ARangeEqualsThatPartOfTheWhole) {
  std::vector<float> source(64);
  std::iota(source.begin(), source.end(), 0.0f);
  const std::string data = pack_all(source);
  const StoredTensor tensor = tensor_of("t", DType::kF32, {8, 8}, data);
  std::vector<float> row(8);
  expand(tensor, 24, row);
  EXPECT_EQ(row, std::vector<float>(source.begin() + 24, source.begin() + 32));
}

TEST(Expand, ABlockRangeEqualsThatPartOfTheWhole) {
  std::string data;
  for (int i = 0; i < 34 * 4; ++i) data += static_cast<char>(i * 37 & 0x3f);
  const StoredTensor tensor = tensor_of("t", DType::kQ8_0, {2, 64}, data);
  std::vector<float> whole(128);
  expand(tensor, 0, whole);
  std::vector<float> part(64);
  expand(tensor, 32, part);
  EXPECT_EQ(part, std::vector<float>(whole.begin() + 32, whole.begin() + 96));
}

TEST(Expand, RangesOutsideTheTensorOrInsideABlockBreakThePromise) {
  const std::string data(68, '\0');
  const StoredTensor tensor = tensor_of("t", DType::kQ8_0, {64}, data);
  std::vector<float> out(32);
  EXPECT_THROW(expand(tensor, 16, out), InternalError);
  EXPECT_THROW(expand(tensor, 64, out), InternalError);
  EXPECT_THROW(expand(tensor, -32, out), InternalError);
  EXPECT_THROW(expand(tensor, 0, std::span<float>(out).first(8)), InternalError);
}

TEST(Expand, EmptyRangeIsAllowed) {
  const StoredTensor tensor = tensor_of("t", DType::kF32, {0, 4}, "");
  EXPECT_NO_THROW(expand(tensor, 0, std::span<float>()));
}

}  // namespace
}  // namespace sluice::impl
