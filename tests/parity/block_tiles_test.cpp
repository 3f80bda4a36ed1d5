// Tiles of blocks: the register tiles against plain loops over the same integers, and outliers of
// activations, which are not rounded.

#include "backend/cpu/gemm/blocks/activations.h"
#include "backend/cpu/gemm/blocks/tile_activations.h"
#include "backend/cpu/gemm/linear.h"
#include "parity/backends.h"
#include "parity/block_cases.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

using namespace cpu::gemm;

// Group 0 of a matrix of up to eight rows, unpacked.
struct Unpacked {
  Unpacked(const BlockTileKernel& kernel, const BlockMatrix& matrix, DType type) {
    const BlockLayout layout = make_block_layout(type);
    const int64_t n_in = matrix.source.n_in, n_blocks = n_in / layout.block;
    std::vector<std::byte> packed(static_cast<size_t>(n_blocks * layout.bytes));
    const std::byte* rows[kGroupRows] = {};
    for (int64_t r = 0; r < matrix.source.n_out; ++r)
      rows[r] = matrix.source.stored.front().bytes + r * n_blocks * block_size(type).bytes;
    for (int64_t b = 0; b < n_blocks; ++b)
      pack_group_block(type, rows, b, packed.data() + b * layout.bytes);
    weights.resize(static_cast<size_t>(n_in * kGroupRows));
    scales.resize(static_cast<size_t>(n_in / layout.scale_width * 16));
    minima.resize(scales.size());
    kernel.unpack(type)(packed.data(), n_blocks, group());
  }
  UnpackedGroup group() { return {weights.data(), scales.data(), minima.data()}; }

  std::vector<int8_t> weights;
  std::vector<float> scales, minima;
};

class BlockTileKernels : public testing::TestWithParam<const BlockTileKernel* (*)()> {};

TEST_P(BlockTileKernels, MultiplyTheIntegersExactly) {
  const BlockTileKernel* kernel = GetParam()();
  if (kernel == nullptr) GTEST_SKIP() << "no such tiles on this CPU";
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(dtype_name(type));
    ASSERT_EQ(kernel->tile(type) == nullptr, kernel->unpack(type) == nullptr);
    if (kernel->tile(type) == nullptr) continue;
    constexpr int64_t kIn = 768, kRows = 6;
    const BlockMatrix matrix({{0, 7, type, nullptr}}, kIn, 3);
    Unpacked weights(*kernel, matrix, type);
    std::vector<float> x = random_values(kRows * kIn, 11);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i / 32 % 5));
    TiledRows rows;
    rows.set(Tensor(x.data(), DType::kF32, {kRows, kIn}), 0, kRows, true);
    ASSERT_EQ(rows.tiles(), 2);
    EXPECT_TRUE(rows.outliers(0, kIn).empty());
    std::vector<float> got(2 * kTileX * 9, NAN);
    for (int64_t t = 0; t < 2; ++t)
      for (const bool again : {false, true}) {
        BlockTileArgs args = rows.tile(t, 0);
        args.w = weights.group();
        args.n = kIn / kSubBlock;
        args.out = got.data() + t * kTileX * 9;
        args.out_stride = 9;
        args.accumulate = again;
        kernel->tile(type)(args);
      }
    for (int64_t r = 0; r < 2 * kTileX; ++r) {
      EXPECT_TRUE(std::isnan(got[static_cast<size_t>(r * 9 + 8)]));
      EXPECT_EQ(got[static_cast<size_t>(r * 9 + 7)], 0.0f);  // no row of the matrix
      for (int64_t n = 0; n < 7; ++n) {
        double sum = 0, size = 0;
        for (int64_t b = 0; r < kRows && b < kIn / 32; ++b) {
          int8_t q[32];
          const float scale = quantise_activations(x.data() + r * kIn + b * 32, 32, q);
          for (int64_t i = 0; i < 32; ++i) {
            const double term =
                double{scale} * q[i] * matrix.weights[static_cast<size_t>(n * kIn + b * 32 + i)];
            sum += term;
            size += std::abs(term);
          }
        }
        // As in blocks_test.cpp, with a scale to 16 weights at most.
        const double bound = 6 * static_cast<double>(kIn / 16 + 2) * kF32Unit * 16 * size;
        EXPECT_NEAR(got[static_cast<size_t>(r * 9 + n)], 2 * sum, 2 * bound) << r << ", " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockTileKernels,
                         testing::Values(block_tiles_i8mm, block_tiles_dotprod, block_tiles_avx2,
                                         block_tiles_avx512),
                         [](const auto& test) {
                           if (test.param == block_tiles_i8mm) return "i8mm";
                           if (test.param == block_tiles_dotprod) return "dotprod";
                           return test.param == block_tiles_avx2 ? "avx2" : "avx512";
                         });

// Two groups at once give what each gives, to the bit.
TEST_P(BlockTileKernels, TwoGroupsGiveWhatEachGives) {
  const BlockTileKernel* kernel = GetParam()();
  if (kernel == nullptr || kernel->two == nullptr) GTEST_SKIP() << "none of two groups on this CPU";
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(dtype_name(type));
    if (kernel->tile(type) == nullptr) continue;
    constexpr int64_t kIn = 768;
    const BlockMatrix first({{0, 8, type, nullptr}}, kIn, 3),
        second({{0, 8, type, nullptr}}, kIn, 5);
    Unpacked a(*kernel, first, type), b(*kernel, second, type);
    const std::vector<float> x = random_values(kTileX * kIn, 11);
    TiledRows rows;
    rows.set(ConstTensor(x.data(), DType::kF32, {kTileX, kIn}), 0, kTileX, true);
    std::vector<float> together(kTileX * 17, NAN), apart = together;
    for (const bool again : {false, true}) {
      BlockTileArgs args = rows.tile(0, 0);
      args.n = kIn / kSubBlock;
      args.out_stride = 17;
      args.accumulate = again;
      args.w = a.group();
      args.next = b.group();
      args.out = together.data();
      kernel->two(type)(args);
      args.out = apart.data();
      kernel->tile(type)(args);
      args.w = b.group();
      args.out += kGroupRows;
      kernel->tile(type)(args);
    }
    EXPECT_SAME_BITS(together, apart);
  }
}

TEST_P(BlockTileKernels, SumsOfTheLargestNumbersFit) {
  const BlockTileKernel* kernel = GetParam()();
  if (kernel == nullptr) GTEST_SKIP() << "no such tiles on this CPU";
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(dtype_name(type));
    if (kernel->tile(type) == nullptr) continue;
    constexpr int64_t kIn = 256;
    const int bits = make_block_layout(type).bits;
    const int largest = (1 << (kernel->minima ? bits : bits - 1)) - 1;
    std::vector<int8_t> weights(kIn * kGroupRows, static_cast<int8_t>(largest));
    std::vector<float> scales(kIn, 1.0f), minima(kIn, 0.0f);
    const UnpackedGroup group{weights.data(), scales.data(), minima.data()};
    std::vector<float> x(kTileX * kIn, 1.0f);
    std::fill_n(x.begin() + kIn, kIn, -1.0f);
    TiledRows rows;
    rows.set(Tensor(x.data(), DType::kF32, {kTileX, kIn}), 0, kTileX, true);
    BlockTileArgs args = rows.tile(0, 0);
    args.w = args.next = group;
    args.n = kIn / kSubBlock;
    args.out_stride = 2 * kGroupRows;
    std::vector<float> out(kTileX * 2 * kGroupRows);
    args.out = out.data();
    const auto expect_sums = [&](int64_t n) {
      for (int64_t r = 0; r < kTileX; ++r)
        for (int64_t i = 0; i < n; ++i)
          EXPECT_FLOAT_EQ(out[static_cast<size_t>(r * args.out_stride + i)],
                          static_cast<float>((r == 1 ? -largest : largest) * kIn));
    };
    kernel->tile(type)(args);
    expect_sums(kGroupRows);
    if (kernel->two == nullptr) continue;
    kernel->two(type)(args);
    expect_sums(2 * kGroupRows);
  }
}

// x W^T for rows with outliers, against plain loops: only the values that are none are rounded.
void expect_exact_outliers(DType type) {
  SCOPED_TRACE(dtype_name(type));
  constexpr DType dtype = DType::kBF16;
  constexpr int64_t kIn = 2048, kOut = 21, kRows = 13;
  const BlockMatrix matrix({{0, kOut, type, nullptr}}, kIn, 5);
  std::vector<float> x = random_values(kRows * kIn, 9, dtype);
  // One in the last pass of inputs, two in a sub-block, one input of three rows, in every sign.
  const std::pair<int64_t, int64_t> places[] = {{0, 5},   {0, 2000}, {3, 70},  {3, 71},
                                                {7, 900}, {8, 900},  {9, 900}, {12, 1535}};
  std::vector<bool> out(x.size());
  for (const auto& [row, k] : places) {
    x[static_cast<size_t>(row * kIn + k)] = k % 2 == 0 ? 60.0f : -45.0f;
    out[static_cast<size_t>(row * kIn + k)] = true;
  }
  const auto backend = make_cpu_backend(dtype);
  const auto weights = backend->pack_linear(matrix.source);
  const DeviceTensor in(*backend, dtype, {kRows, kIn}, x, 3);
  const DeviceTensor to = unwritten(*backend, DType::kF32, {kRows, kOut});
  backend->linear({.weights = weights.get(), .x = in.view(), .out = to.view()});
  const std::vector<float> got = to.values();
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t n = 0; n < kOut; ++n) {
      double sum = 0, size = 0, rounding = 0;
      for (int64_t b = 0; b < kIn / 32; ++b) {
        double largest = 0, of_block = 0;
        for (int64_t i = b * 32; i < (b + 1) * 32; ++i) {
          const auto at = static_cast<size_t>(r * kIn + i);
          const double w = matrix.weights[static_cast<size_t>(n * kIn + i)];
          sum += x[at] * w;
          size += std::abs(x[at] * w);
          if (!out[at]) largest = std::max<double>(largest, std::abs(x[at]));
          of_block += std::abs(w);
        }
        rounding += largest / 254 * of_block;
      }
      EXPECT_NEAR(got[static_cast<size_t>(r * kOut + n)], sum,
                  rounding + dot_error(DType::kF32, kIn, 1.01 * size))
          << r << ", " << n;
    }
}

TEST(BlockTiles, OutliersAreNotRounded) {
  const auto has_tiles = [](DType type) { return block_tiles(type) != nullptr; };
  if (std::none_of(std::begin(kBlockTypes), std::end(kBlockTypes), has_tiles))
    GTEST_SKIP() << "no tiles for this CPU";
  for (const DType type : kBlockTypes)
    if (has_tiles(type)) expect_exact_outliers(type);
}

// Rows of f32 hold what rows of bf16 hold.
TEST(BlockTiles, RowsOfF32AndBF16AreTheSame) {
  constexpr int64_t kIn = 96, kRows = 5;
  std::vector<float> x = random_values(kRows * kIn, 9, DType::kBF16);
  x[kIn + 7] = 40;
  std::vector<BFloat16> narrow;
  for (const float value : x) narrow.push_back(to_bfloat16(value));
  TiledRows wide_rows, narrow_rows;
  wide_rows.set(Tensor(x.data(), DType::kF32, {kRows, kIn}), 0, kRows, true);
  narrow_rows.set(Tensor(narrow.data(), DType::kBF16, {kRows, kIn}), 0, kRows, true);
  for (int64_t t = 0; t < 2; ++t) {
    const BlockTileArgs a = wide_rows.tile(t, 0), b = narrow_rows.tile(t, 0);
    EXPECT_TRUE(std::equal(a.x, a.x + kTileX * kIn, b.x));
    EXPECT_TRUE(std::equal(a.x_scales, a.x_scales + kIn / 32 * 8, b.x_scales));
    EXPECT_TRUE(std::equal(a.x_products, a.x_products + kIn / 32 * 8, b.x_products));
  }
  for (const TiledRows* rows : {&wide_rows, &narrow_rows}) {
    ASSERT_EQ(rows->outliers(0, kIn).size(), 1u);
    EXPECT_EQ(rows->outliers(0, kIn).front().k, 7);
    EXPECT_EQ(rows->outliers(0, kIn).front().row, 1);
    EXPECT_EQ(rows->outliers(0, kIn).front().value, 40);
    EXPECT_TRUE(rows->outliers(8, kIn).empty());
  }
}

TEST(BlockTiles, NumbersThatAreNotFiniteStayInTheirRow) {
  const auto backend = make_cpu_backend(DType::kBF16);
  constexpr int64_t kRows = 11;
  const BlockMatrix matrix({{0, 9, DType::kQ4_0, nullptr}}, 64, 3);
  const auto weights = backend->pack_linear(matrix.source);
  std::vector<float> in(kRows * 64, 1.0f);
  in[3 * 64 + 40] = NAN;
  in[8 * 64 + 1] = INFINITY;
  const DeviceTensor x(*backend, DType::kBF16, {kRows, 64}, in);
  const DeviceTensor out = unwritten(*backend, DType::kF32, {kRows, 9});
  backend->linear({.weights = weights.get(), .x = x.view(), .out = out.view()});
  const std::vector<float> got = out.values();
  for (int64_t i = 0; i < kRows * 9; ++i)
    EXPECT_EQ(std::isfinite(got[static_cast<size_t>(i)]), i / 9 != 3 && i / 9 != 8) << i;
}

}  // namespace
}  // namespace sluice::impl::test
