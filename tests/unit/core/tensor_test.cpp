// Shapes, views and host memory.

#include "core/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>

#include "sanitized.h"

namespace sluice::impl {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TEST(Shape, CountsItsElements) {
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ(Shape({7}).numel(), 7);
  EXPECT_EQ(Shape({2, 3, 4, 5}).numel(), 120);
  EXPECT_EQ(Shape({2, 0, 4}).numel(), 0);
  EXPECT_EQ(Shape({2, 3}).str(), "(2, 3)");
  EXPECT_EQ(Shape().str(), "()");
}

TEST(Shape, RefusesWhatDoesNotFitInt64) {
  EXPECT_THROW(Shape({kHuge, 2}), Error);
  EXPECT_THROW(Shape({int64_t{1} << 32, int64_t{1} << 31}), Error);
  EXPECT_THROW(Shape({3, -1}), Error);
  EXPECT_THROW(Shape({-1, -1}), Error);
  EXPECT_THROW(Shape({1, 1, 1, 1, 1}), Error);
  EXPECT_EQ(Shape({kHuge, 1}).numel(), kHuge);
}

TEST(CheckedArithmetic, ThrowsInsteadOfWrapping) {
  EXPECT_EQ(checked_mul(kHuge, 1), kHuge);
  EXPECT_EQ(checked_mul(0, kHuge), 0);
  EXPECT_THROW(checked_mul(kHuge, 2), Error);
  EXPECT_THROW(checked_mul(-1, 2), Error);
  EXPECT_EQ(checked_add(kHuge - 1, 1), kHuge);
  EXPECT_THROW(checked_add(kHuge, 1), Error);
  EXPECT_THROW(checked_add(1, -1), Error);
}

class TensorView : public testing::Test {
 protected:
  TensorView() { std::iota(numbers.begin(), numbers.end(), 0.0f); }
  std::vector<float> numbers = std::vector<float>(24);
  const Tensor matrix{numbers.data(), DType::kF32, {4, 6}};
};

TEST_F(TensorView, RowsAndColumnsAreWhereTheyStand) {
  const Tensor rows = matrix.rows_from(1, 2);
  EXPECT_EQ(rows.shape(), Shape({2, 6}));
  EXPECT_EQ(rows.row<float>(1)[0], 12);
  const Tensor columns = matrix.columns_from(2, 3);
  EXPECT_EQ(columns.shape(), Shape({4, 3}));
  EXPECT_EQ(columns.row_stride(), 6);
  EXPECT_EQ(columns.row<float>(3)[1], 21);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.rows_from(2, 1).row<float>(0)[0], 14);
  EXPECT_TRUE(columns.rows_from(2, 1).contiguous());
}

TEST_F(TensorView, WritesGoToTheMemoryBelow) {
  matrix.columns_from(5, 1).rows_from(3, 1).row<float>(0)[0] = -1;
  EXPECT_EQ(numbers[23], -1);
}

TEST_F(TensorView, ReshapingKeepsTheElementsInOrder) {
  const Tensor cube = matrix.reshaped({2, 3, 4});
  EXPECT_EQ(cube.row_elements(), 12);
  EXPECT_EQ(cube.row<float>(1)[4], 16);
  EXPECT_THROW(matrix.reshaped({5, 5}), InternalError);
  EXPECT_THROW(matrix.columns_from(0, 3).reshaped({12}), InternalError);
}

TEST_F(TensorView, RangesOutsideAreRefused) {
  EXPECT_THROW(matrix.rows_from(3, 2), InternalError);
  EXPECT_THROW(matrix.rows_from(-1, 1), InternalError);
  EXPECT_THROW(matrix.columns_from(6, 1), InternalError);
  EXPECT_THROW(matrix.reshaped({24}).columns_from(0, 1), InternalError);
  EXPECT_EQ(matrix.rows_from(4, 0).rows(), 0);
}

TEST_F(TensorView, DataOfAnotherTypeIsRefused) {
  EXPECT_THROW(matrix.data<BFloat16>(), InternalError);
  EXPECT_THROW(matrix.row<int32_t>(0), InternalError);
}

TEST_F(TensorView, ReadableViewKeepsTheStride) {
  const ConstTensor readable = matrix.columns_from(1, 2);
  EXPECT_EQ(readable.row_stride(), 6);
  EXPECT_EQ(readable.row<float>(2)[1], 14);
  EXPECT_FALSE(ConstTensor().defined());
}

TEST(HostBuffer, IsZeroAlignedAndWritable) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32, DType::kI8})
    for (const int64_t n : {0, 1, 63, 1000}) {
      const Buffer buffer = host_buffer(dtype, {n, 3});
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.view().bytes()) % 64, 0u);
      EXPECT_EQ(buffer.view().shape(), Shape({n, 3}));
      for (int64_t i = 0; i < n * 3 * element_bytes(dtype); ++i)
        ASSERT_EQ(buffer.view().bytes()[i], std::byte{0});
      std::fill_n(buffer.view().bytes(), n * 3 * element_bytes(dtype), std::byte{1});
    }
}

TEST(HostBuffer, MoreThanTheMachineHasIsAnErrorWithAHint) {
  EXPECT_THROW(host_buffer(DType::kF32, {kHuge / 2}), Error);  // bytes beyond int64
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer ends the program where malloc would refuse";
  try {
    host_buffer(DType::kF32, {int64_t{1} << 58});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot allocate"), std::string::npos);
    EXPECT_FALSE(error.hint().empty());
  }
}

TEST(HostBuffer, MovesWithItsMemory) {
  Buffer first = host_buffer(DType::kF32, {4});
  first.view().data<float>()[2] = 5;
  const std::byte* where = first.view().bytes();
  const Buffer second = std::move(first);
  EXPECT_EQ(second.view().bytes(), where);
  EXPECT_EQ(second.view().data<float>()[2], 5);
}

TEST(Check, NamesTheExpressionAndTheFileWithoutItsFolder) {
  try {
    SLUICE_CHECK(1 + 1 == 3);
    FAIL();
  } catch (const InternalError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("1 + 1 == 3 (tensor_test.cpp:"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace sluice::impl
