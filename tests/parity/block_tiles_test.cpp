// Tiles of blocks: the register tiles against plain loops over the same integers, and outliers of
// activations, which are not rounded.

#include "backend/cpu/gemm/blocks/activations.h"
#include "backend/cpu/gemm/blocks/tile_activations.h"
#include "backend/cpu/gemm/blocks/tiled_product.h"
#include "backend/cpu/gemm/linear.h"
#include "parity/backends.h"
#include "parity/block_cases.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

using namespace cpu::gemm;

// The group of `matrix` that begins with its row `first`.
std::vector<std::byte> packed_group(const BlockMatrix& matrix, DType type, int64_t first) {
  const BlockLayout layout = make_block_layout(type);
  const int64_t n_blocks = matrix.source.n_in / layout.block;
  std::vector<std::byte> packed(static_cast<size_t>(n_blocks * layout.bytes));
  const std::byte* rows[kGroupRows] = {};
  for (int64_t r = 0; r < std::min(kGroupRows, matrix.source.n_out - first); ++r)
    rows[r] = matrix.source.stored.front().bytes + (first + r) * n_blocks * block_size(type).bytes;
  for (int64_t b = 0; b < n_blocks; ++b)
    pack_group_block(type, rows, b, packed.data() + b * layout.bytes);
  return packed;
}

// A panel, unpacked.
struct Unpacked {
  // Zeros in every group.
  Unpacked(const BlockTileKernel& kernel, DType type, int64_t inputs)
      : layout(make_block_layout(type)), n_in(inputs), rows(kernel.panel_groups * kGroupRows) {
    weights.resize(static_cast<size_t>(n_in * rows));
    scales.resize(static_cast<size_t>(n_in / layout.scale_width * rows * 2));
    minima.resize(scales.size());
    sums = {.products = true,
            .offset = kernel.unsigned_weights ? unsigned_offset(layout) : 0,
            .scale_width = layout.scale_width};
  }
  // A matrix of as many rows or fewer.
  Unpacked(const BlockTileKernel& kernel, DType type, const BlockMatrix& matrix)
      : Unpacked(kernel, type, matrix.source.n_in) {
    for (int64_t row = 0; row < matrix.source.n_out; row += kGroupRows)
      put(kernel, type, matrix, row, row);
  }
  // The group of `matrix` that begins with its row `from`, as that which begins with row `to`.
  void put(const BlockTileKernel& kernel, DType type, const BlockMatrix& matrix, int64_t from,
           int64_t to) {
    const std::vector<std::byte> packed = packed_group(matrix, type, from);
    kernel.unpack(type)(packed.data(), n_in / layout.block,
                        {.weights = weights.data() + to * kernel.together,
                         .scales = scales.data() + to,
                         .minima = minima.data() + to});
    groups = std::max(groups, to / kGroupRows + 1);
  }
  // To multiply a tile of x with the panel.
  BlockTileArgs call(const TiledRows& x, int64_t tile) {
    BlockTileArgs args = x.tile(tile, 0);
    args.w = {.weights = weights.data(), .scales = scales.data(), .minima = minima.data()};
    args.groups = groups;
    args.n = n_in / kSubBlock;
    return args;
  }

  BlockLayout layout;
  int64_t n_in, rows;  // rows of a full panel
  int64_t groups = 0;  // that it has
  std::vector<int8_t> weights;
  std::vector<float> scales, minima;
  RowSums sums;  // that it wants of activations
};

class BlockTileKernels : public testing::TestWithParam<const BlockTileKernel* (*)()> {};

// A panel of `groups` groups, without the last row.
void expect_exact(const BlockTileKernel& kernel, DType type, int64_t groups) {
  SCOPED_TRACE(testing::Message() << dtype_name(type) << ", " << groups << " groups");
  constexpr int64_t kIn = 768, kRows = 6;
  const int64_t n_out = groups * kGroupRows - 1;
  const BlockMatrix matrix({{0, n_out, type, nullptr}}, kIn, 3);
  Unpacked weights(kernel, type, matrix);
  std::vector<float> x = random_values(kRows * kIn, 11);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i / 32 % 5));
  TiledRows rows;
  rows.set(Tensor(x.data(), DType::kF32, {kRows, kIn}), 0, kRows, weights.sums);
  ASSERT_EQ(rows.tiles(), 2);
  EXPECT_TRUE(rows.outliers(0, kIn).empty());
  const int64_t stride = weights.rows + 1;
  std::vector<float> got(static_cast<size_t>(2 * kTileX * stride), NAN);
  for (int64_t t = 0; t < 2; ++t)
    for (const bool again : {false, true}) {
      BlockTileArgs args = weights.call(rows, t);
      args.out = got.data() + t * kTileX * stride;
      args.out_stride = stride;
      args.accumulate = again;
      kernel.tile(type)(args);
    }
  for (int64_t r = 0; r < 2 * kTileX; ++r) {
    const float* of_row = got.data() + r * stride;
    EXPECT_TRUE(std::isnan(of_row[weights.rows]));
    EXPECT_EQ(of_row[n_out], 0.0f);  // no row of the matrix
    for (int64_t n = 0; n < n_out; ++n) {
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
      EXPECT_NEAR(of_row[n], 2 * sum, 2 * bound) << r << ", " << n;
    }
  }
}

TEST_P(BlockTileKernels, MultiplyTheIntegersExactly) {
  const BlockTileKernel* kernel = GetParam()();
  if (kernel == nullptr) GTEST_SKIP() << "no such tiles on this CPU";
  for (const DType type : kBlockTypes) {
    ASSERT_EQ(kernel->tile(type) == nullptr, kernel->unpack(type) == nullptr);
    if (kernel->tile(type) == nullptr) continue;
    for (int64_t groups = 1; groups <= kernel->panel_groups; ++groups)
      expect_exact(*kernel, type, groups);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockTileKernels,
                         testing::Values(block_tiles_i8mm, block_tiles_dotprod, block_tiles_avx2,
                                         block_tiles_avx512, block_tiles_vnni),
                         [](const auto& test) {
                           if (test.param == block_tiles_i8mm) return "i8mm";
                           if (test.param == block_tiles_dotprod) return "dotprod";
                           if (test.param == block_tiles_avx2) return "avx2";
                           return test.param == block_tiles_avx512 ? "avx512" : "vnni";
                         });

// Products of a panel with one tile, (4, rows of the panel), twice in sum.
std::vector<float> product(const BlockTileKernel& kernel, DType type, Unpacked& panel) {
  const std::vector<float> x = random_values(kTileX * panel.n_in, 11);
  TiledRows rows;
  rows.set(ConstTensor(x.data(), DType::kF32, {kTileX, panel.n_in}), 0, kTileX, panel.sums);
  std::vector<float> out(static_cast<size_t>(kTileX * panel.rows));
  for (const bool again : {false, true}) {
    BlockTileArgs args = panel.call(rows, 0);
    args.out = out.data();
    args.out_stride = panel.rows;
    args.accumulate = again;
    kernel.tile(type)(args);
  }
  return out;
}

// Columns [first, first + n) of rows of `stride`.
std::vector<float> columns(const std::vector<float>& rows, int64_t stride, int64_t first,
                           int64_t n) {
  std::vector<float> out;
  for (int64_t r = 0; r < std::ssize(rows) / stride; ++r)
    out.insert(out.end(), rows.begin() + r * stride + first, rows.begin() + r * stride + first + n);
  return out;
}

// To the bit, wherever they are in the panel and whatever else is there.
TEST_P(BlockTileKernels, GroupsOfAPanelGiveWhatEachGives) {
  const BlockTileKernel* kernel = GetParam()();
  if (kernel == nullptr || kernel->panel_groups == 1)
    GTEST_SKIP() << "none of several groups on this CPU";
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(dtype_name(type));
    if (kernel->tile(type) == nullptr) continue;
    constexpr int64_t kIn = 768;
    const BlockMatrix matrix({{0, kernel->panel_groups * kGroupRows, type, nullptr}}, kIn, 3);
    Unpacked panel(*kernel, type, matrix);
    const std::vector<float> together = product(*kernel, type, panel);
    for (int64_t row = 0; row < panel.rows; row += kGroupRows) {
      Unpacked alone(*kernel, type, kIn);
      alone.put(*kernel, type, matrix, row, 0);
      EXPECT_SAME_BITS(columns(together, panel.rows, row, kGroupRows),
                       columns(product(*kernel, type, alone), panel.rows, 0, kGroupRows));
    }
  }
}

TEST(BlockTiles, OfAvx512GiveWhatThoseOfAvx2Give) {
  if (block_tiles_avx512() == nullptr) GTEST_SKIP() << "no such tiles on this CPU";
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(dtype_name(type));
    if (block_tiles_avx512()->tile(type) == nullptr) continue;
    const BlockMatrix matrix({{0, kGroupRows, type, nullptr}}, 768, 3);
    Unpacked wide(*block_tiles_avx512(), type, matrix), narrow(*block_tiles_avx2(), type, matrix);
    EXPECT_SAME_BITS(columns(product(*block_tiles_avx512(), type, wide), wide.rows, 0, kGroupRows),
                     product(*block_tiles_avx2(), type, narrow));
  }
}

// Weights that are all `weight`, unpacked, and activations of the largest numbers, 127 or -127.
void expect_sums_fit(const BlockTileKernel& kernel, DType type, int weight) {
  SCOPED_TRACE(testing::Message() << dtype_name(type) << ", " << weight);
  constexpr int64_t kIn = 256;
  Unpacked panel(kernel, type, kIn);
  std::fill(panel.weights.begin(), panel.weights.end(), static_cast<int8_t>(weight));
  std::fill(panel.scales.begin(), panel.scales.end(), 1.0f);
  panel.groups = kernel.panel_groups;
  std::vector<float> x(kTileX * kIn, 1.0f);
  std::fill_n(x.begin() + kIn, kIn, -1.0f);
  TiledRows rows;
  rows.set(Tensor(x.data(), DType::kF32, {kTileX, kIn}), 0, kTileX, panel.sums);
  std::vector<float> out(static_cast<size_t>(kTileX * panel.rows));
  BlockTileArgs args = panel.call(rows, 0);
  args.out = out.data();
  args.out_stride = panel.rows;
  kernel.tile(type)(args);
  const int64_t sum = (weight + panel.sums.offset) * kIn;
  for (int64_t r = 0; r < kTileX; ++r)
    for (int64_t i = 0; i < panel.rows; ++i)
      EXPECT_FLOAT_EQ(out[static_cast<size_t>(r * panel.rows + i)],
                      static_cast<float>(r == 1 ? -sum : sum));
}

TEST_P(BlockTileKernels, SumsOfTheLargestNumbersFit) {
  const BlockTileKernel* kernel = GetParam()();
  if (kernel == nullptr) GTEST_SKIP() << "no such tiles on this CPU";
  for (const DType type : kBlockTypes) {
    if (kernel->tile(type) == nullptr) continue;
    const bool is_unsigned = kernel->minima || kernel->unsigned_weights;
    const int bits = make_block_layout(type).bits;
    expect_sums_fit(*kernel, type, (1 << (is_unsigned ? bits : bits - 1)) - 1);
    expect_sums_fit(*kernel, type, is_unsigned ? 0 : -(1 << (bits - 1)));
  }
}

// x W^T for rows with outliers, against plain loops: only the values that are none are rounded. As
// many outputs as take several passes and slabs of a thread, as many inputs as take two pieces.
void expect_exact_outliers(const BlockTileKernel& kernel, DType type) {
  SCOPED_TRACE(dtype_name(type));
  constexpr DType dtype = DType::kBF16;
  constexpr int64_t kIn = 2048, kOut = 213, kRows = 13;
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
  const DeviceTensor in(*backend, dtype, {kRows, kIn}, x, 3);
  const DeviceTensor to = unwritten(*backend, DType::kF32, {kRows, kOut});
  std::vector<std::byte> groups;
  for (int64_t row = 0; row < kOut; row += kGroupRows) {
    const std::vector<std::byte> group = packed_group(matrix, type, row);
    groups.insert(groups.end(), group.begin(), group.end());
  }
  const BlockLayout layout = make_block_layout(type);
  const LinearArgs linear{.weights = nullptr, .x = in.view(), .out = to.view()};
  set_threads(1);
  multiply_by_tiles({.linear = &linear,
                     .kernel = &kernel,
                     .type = type,
                     .groups = groups.data(),
                     .group_bytes = kIn / layout.block * layout.bytes,
                     .n_out = kOut,
                     .n_in = kIn,
                     .bias = nullptr});
  set_threads(0);
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

TEST_P(BlockTileKernels, OutliersAreNotRounded) {
  const BlockTileKernel* kernel = GetParam()();
  if (kernel == nullptr) GTEST_SKIP() << "no such tiles on this CPU";
  for (const DType type : kBlockTypes)
    if (kernel->tile(type) != nullptr) expect_exact_outliers(*kernel, type);
}

// Rows of f32 hold what rows of bf16 hold.
TEST(BlockTiles, RowsOfF32AndBF16AreTheSame) {
  constexpr int64_t kIn = 96, kRows = 5;
  std::vector<float> x = random_values(kRows * kIn, 9, DType::kBF16);
  x[kIn + 7] = 40;
  std::vector<BFloat16> narrow;
  for (const float value : x) narrow.push_back(to_bfloat16(value));
  const RowSums sums{.products = true, .offset = -8, .scale_width = 16};
  TiledRows wide_rows, narrow_rows;
  wide_rows.set(Tensor(x.data(), DType::kF32, {kRows, kIn}), 0, kRows, sums);
  narrow_rows.set(Tensor(narrow.data(), DType::kBF16, {kRows, kIn}), 0, kRows, sums);
  for (int64_t t = 0; t < 2; ++t) {
    const BlockTileArgs a = wide_rows.tile(t, 0), b = narrow_rows.tile(t, 0);
    EXPECT_TRUE(std::equal(a.x, a.x + kTileX * kIn, b.x));
    EXPECT_TRUE(std::equal(a.x_scales, a.x_scales + kIn / 32 * 8, b.x_scales));
    EXPECT_TRUE(std::equal(a.x_products, a.x_products + kIn / 32 * 8, b.x_products));
    EXPECT_TRUE(std::equal(a.x_starts, a.x_starts + kIn / 16 * kTileX, b.x_starts));
  }
  for (const TiledRows* rows : {&wide_rows, &narrow_rows}) {
    ASSERT_EQ(rows->outliers(0, kIn).size(), 1u);
    EXPECT_EQ(rows->outliers(0, kIn).front().k, 7);
    EXPECT_EQ(rows->outliers(0, kIn).front().row, 1);
    EXPECT_EQ(rows->outliers(0, kIn).front().value, 40);
    EXPECT_TRUE(rows->outliers(8, kIn).empty());
  }
}

void expect_finite_rows(DType type) {
  SCOPED_TRACE(dtype_name(type));
  const auto backend = make_cpu_backend(DType::kBF16);
  constexpr int64_t kIn = 256, kRows = 11;
  const BlockMatrix matrix({{0, 9, type, nullptr}}, kIn, 3);
  const auto weights = backend->pack_linear(matrix.source);
  std::vector<float> in(kRows * kIn, 1.0f);
  in[3 * kIn + 40] = NAN;
  in[8 * kIn + 1] = INFINITY;
  const DeviceTensor x(*backend, DType::kBF16, {kRows, kIn}, in);
  const DeviceTensor out = unwritten(*backend, DType::kF32, {kRows, 9});
  backend->linear({.weights = weights.get(), .x = x.view(), .out = out.view()});
  const std::vector<float> got = out.values();
  for (int64_t i = 0; i < kRows * 9; ++i)
    EXPECT_EQ(std::isfinite(got[static_cast<size_t>(i)]), i / 9 != 3 && i / 9 != 8) << i;
}

TEST(BlockTiles, NumbersThatAreNotFiniteStayInTheirRow) {
  for (const DType type : kBlockTypes) expect_finite_rows(type);
}

}  // namespace
}  // namespace sluice::impl::test
