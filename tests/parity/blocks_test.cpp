// Products with weights in blocks: every kernel against plain loops over the same integers, and the
// whole product against the expanded matrix within what the rounding of activations allows.

#include <cstdlib>
#include <numeric>

#include "backend/cpu/gemm/blocks/activations.h"
#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"
#include "backend/cpu/gemm/linear.h"
#include "parity/backends.h"
#include "parity/block_cases.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

using namespace cpu::gemm;

// Rows of x with blocks of very different sizes, one of them zero.
std::vector<float> activations(int64_t n_rows, int64_t n_in, DType dtype) {
  std::vector<float> x = random_values(n_rows * n_in, 11, dtype);
  for (int64_t i = 0; i < n_rows * n_in; ++i)
    x[static_cast<size_t>(i)] *= std::ldexp(1.0f, static_cast<int>(i / 32 % 7) - 3);
  std::fill(x.begin(), x.begin() + 32, 0.0f);
  return x;
}

std::vector<std::byte> packed_group(const BlockMatrix& matrix, DType type) {
  const BlockLayout layout = make_block_layout(type);
  const int64_t n_blocks = matrix.source.n_in / layout.block;
  const int64_t row_bytes = n_blocks * block_size(type).bytes;
  std::vector<std::byte> out(static_cast<size_t>(n_blocks * layout.bytes));
  const std::byte* rows[kGroupRows] = {};
  for (int64_t r = 0; r < matrix.source.n_out; ++r)
    rows[r] = matrix.source.stored.front().bytes + r * row_bytes;
  for (int64_t b = 0; b < n_blocks; ++b)
    pack_group_block(type, rows, b, out.data() + b * layout.bytes);
  return out;
}

TEST(BlockLayout, TakesNoMoreThanATenthAboveTheFile) {
  for (const DType type : kBlockTypes) {
    const BlockSize stored = block_size(type);
    const BlockLayout layout = make_block_layout(type);
    EXPECT_EQ(layout.block, stored.elements) << dtype_name(type);
    EXPECT_LE(static_cast<double>(layout.bytes), 1.03 * 8 * static_cast<double>(stored.bytes))
        << dtype_name(type);
  }
}

// Several groups at a time, here all the same, are what each is alone.
void expect_equal_streams(const BlockKernel& kernel, DType type, int64_t n_rows, GroupArgs args,
                          const std::vector<std::byte>& group, const std::vector<float>& alone) {
  std::vector<std::byte> groups;
  for (int64_t i = 0; i < kernel.streams; ++i)
    groups.insert(groups.end(), group.begin(), group.end());
  std::vector<float> got(static_cast<size_t>(kernel.streams) * alone.size(), NAN);
  args.weights = groups.data();
  args.group_stride = std::ssize(group);
  args.out = got.data();
  args.out_group_stride = std::ssize(alone);
  kernel.group(type, n_rows, kernel.streams)(args);
  for (size_t i = 0; i < got.size(); ++i) {
    const float expected = alone[i % alone.size()];
    EXPECT_TRUE(got[i] == expected || (std::isnan(got[i]) && std::isnan(expected))) << i;
  }
}

TEST(BlockKernels, MultiplyTheIntegersExactly) {
  for (const BlockKernel* kernel : block_kernels())
    for (const DType type : kBlockTypes)
      for (int64_t n_rows = 1; n_rows <= kernel->max_rows; ++n_rows) {
        SCOPED_TRACE(testing::Message()
                     << kernel->name << ", " << dtype_name(type) << ", " << n_rows << " rows");
        constexpr int64_t kIn = 768;
        const BlockMatrix matrix({{0, 7, type, nullptr}}, kIn, 3);
        const std::vector<std::byte> group = packed_group(matrix, type);
        std::vector<float> x = activations(n_rows, kIn, DType::kF32);
        QuantisedRows rows;
        rows.set(Tensor(x.data(), DType::kF32, {n_rows, kIn}), type, *kernel);
        EXPECT_EQ(rows.n_terms(), 0);
        // What the rows hold, from a plain layout.
        const int64_t block = block_size(type).elements;
        std::vector<float> rounded_x(x.size());
        for (int64_t b = 0; b < n_rows * kIn / block; ++b) {
          std::vector<int8_t> q(static_cast<size_t>(block));
          const float scale = quantise_activations(x.data() + b * block, block, q.data());
          for (int64_t i = 0; i < block; ++i)
            rounded_x[static_cast<size_t>(b * block + i)] = scale * q[static_cast<size_t>(i)];
        }
        std::vector<float> got(static_cast<size_t>(n_rows * 9), NAN);
        GroupArgs args{.weights = group.data(),
                       .n_blocks = kIn / block,
                       .x = {},
                       .out = got.data(),
                       .out_stride = 9,
                       .group_stride = 0,
                       .out_group_stride = 0};
        for (int64_t r = 0; r < n_rows; ++r) args.x[r] = rows.row(r);
        kernel->group(type, n_rows, 1)(args);
        if (n_rows <= 2) expect_equal_streams(*kernel, type, n_rows, args, group, got);
        for (int64_t r = 0; r < n_rows; ++r)
          for (int64_t n = 0; n < 7; ++n) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < kIn; ++k) {
              const double term = double{rounded_x[static_cast<size_t>(r * kIn + k)]} *
                                  matrix.weights[static_cast<size_t>(n * kIn + k)];
              sum += term;
              size += std::abs(term);
            }
            // Three roundings to a block (scale, product of scales, sum), minima as much again,
            // whose terms may be larger than those of the sum by the range of a weight.
            const double bound = 6 * static_cast<double>(kIn / block + 2) * kF32Unit * 16 * size;
            EXPECT_NEAR(got[static_cast<size_t>(r * 9 + n)], sum, bound) << r << ", " << n;
          }
        EXPECT_EQ(got[7], 0.0f);  // no row of the matrix
        EXPECT_TRUE(std::isnan(got[8]));
      }
}

TEST(BlockActivations, AreWithinHalfAScale) {
  for (const int64_t n : {32, 256}) {
    std::vector<float> x = random_values(n, 5);
    x[3] = -2.5f;
    std::vector<int8_t> q(static_cast<size_t>(n));
    const float scale = quantise_activations(x.data(), n, q.data());
    EXPECT_FLOAT_EQ(scale, 2.5f / 127);
    EXPECT_EQ(q[3], -127);
    for (int64_t i = 0; i < n; ++i)
      EXPECT_LE(std::abs(x[static_cast<size_t>(i)] - scale * q[static_cast<size_t>(i)]),
                0.5001 * scale);
    x[7] = INFINITY;
    EXPECT_TRUE(std::isnan(quantise_activations(x.data(), n, q.data())));
    x[7] = NAN;
    EXPECT_TRUE(std::isnan(quantise_activations(x.data(), n, q.data())));
    std::fill(x.begin(), x.end(), 1e-35f);
    EXPECT_EQ(quantise_activations(x.data(), n, q.data()), 0.0f);
  }
}

TEST(BlockActivations, SumsAreThoseOfTheRoundedValues) {
  constexpr int64_t kBlocks = 5;
  std::vector<float> x = random_values(kBlocks * 32, 5);
  std::fill_n(x.begin() + 32, 32, 3.0f);
  std::fill_n(x.begin() + 64, 32, -3.0f);
  std::vector<int8_t> q(x.size());
  std::vector<float> scales(kBlocks);
  std::vector<int32_t> sums(2 * kBlocks);
  const float squares = quantise_row(x.data(), kBlocks, q.data(), scales.data(), sums.data());
  for (size_t i = 0; i < sums.size(); ++i)
    EXPECT_EQ(sums[i], std::accumulate(&q[16 * i], &q[16 * i] + 16, 0)) << i;
  EXPECT_EQ(sums[2], 16 * 127);
  EXPECT_EQ(sums[5], -16 * 127);
  const double expected = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  EXPECT_NEAR(squares, expected, kBlocks * 32 * kF32Unit * expected);
}

struct Case {
  std::vector<StoredRows> rows;
  int64_t n_in;
  int64_t n_rows;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType type : kBlockTypes) {
    const int64_t block = block_size(type).elements;
    for (int64_t n_rows = 1; n_rows <= 17; ++n_rows)
      all.push_back({{{0, 37, type, nullptr}}, 3 * block, n_rows});
    // More inputs than a pass of tiles takes, more rows than share unpacked weights.
    all.push_back({{{0, 21, type, nullptr}}, 7 * 256, 11});
    all.push_back({{{0, 1, type, nullptr}}, block, 1});
    all.push_back({{{0, 29, type, nullptr}}, 3 * 256, 300});
    // Inputs whose last piece of k joins the one before (576, 640), and does not (672).
    for (const int64_t n_in : {576, 640, 672})
      if (n_in % block == 0) all.push_back({{{0, 11, type, nullptr}}, n_in, 37});
    // Several panels of tiles, the last one not full.
    all.push_back({{{0, 117, type, nullptr}}, 256, 9});
  }
  // Stacks: of one type from two tensors, of two types, with a plain type between.
  for (const int64_t n_rows : {1, 5, 40}) {
    all.push_back({{{0, 13, DType::kQ4_K, nullptr}, {13, 29, DType::kQ4_K, nullptr}}, 512, n_rows});
    all.push_back({{{0, 16, DType::kQ4_K, nullptr}, {16, 27, DType::kQ6_K, nullptr}}, 512, n_rows});
    all.push_back({{{0, 9, DType::kQ8_0, nullptr},
                    {9, 20, DType::kBF16, nullptr},
                    {20, 31, DType::kQ5_0, nullptr}},
                   96,
                   n_rows});
  }
  return all;
}

// What rounding activations to 8 bits may move an output by: half a scale, the block's largest
// magnitude over 127, times the magnitudes of the weights.
double rounding_bound(const BlockMatrix& matrix, DType type, const float* x, int64_t n) {
  const int64_t block = block_size(type).elements, n_in = matrix.source.n_in;
  if (block == 1) return 0;
  double bound = 0;
  for (int64_t first = 0; first < n_in; first += block) {
    double largest = 0, size = 0;
    for (int64_t k = first; k < first + block; ++k) {
      largest = std::max<double>(largest, std::abs(x[k]));
      size += std::abs(matrix.weights[static_cast<size_t>(n * n_in + k)]);
    }
    bound += largest / 254 * size;
  }
  return bound;
}

DType type_of(const Case& c, int64_t n) {
  for (const StoredRows& rows : c.rows)
    if (n < rows.end) return rows.dtype;
  return DType::kF32;
}

struct Results {
  std::vector<float> got, expected;
  std::vector<double> rounding, rest;  // bounds
};

// Of a type of rows; panels of expanded weights do not.
using RoundsActivations = std::function<bool(DType)>;

Results run(Backend& backend, Backend& reference, DType dtype, const Case& c, bool accumulate,
            const RoundsActivations& rounds_activations) {
  const int64_t n_out = c.rows.back().end;
  const BlockMatrix matrix(c.rows, c.n_in, 17, random_values(n_out, 2));
  const std::vector<float> in = activations(c.n_rows, c.n_in, dtype);
  const std::vector<float> old = random_values(c.n_rows * n_out, 4);
  const auto product = [&](Backend& on, DType type) {
    MatrixSource source = matrix.source;
    const auto weights = on.pack_linear(source);
    const DeviceTensor x(on, type, {c.n_rows, c.n_in}, in, 3);
    const DeviceTensor out(on, DType::kF32, {c.n_rows, n_out}, old, 5);
    on.linear(
        {.weights = weights.get(), .x = x.view(), .accumulate = accumulate, .out = out.view()});
    return out.values();
  };
  Results r{product(backend, dtype), product(reference, DType::kF32), {}, {}};
  for (int64_t row = 0; row < c.n_rows; ++row)
    for (int64_t n = 0; n < n_out; ++n) {
      const float* x = in.data() + row * c.n_in;
      double size = 2;  // bias and what is added to
      for (int64_t k = 0; k < c.n_in; ++k)
        size += 1.01 * std::abs(double{x[k]} * matrix.weights[static_cast<size_t>(n * c.n_in + k)]);
      // A panel of bf16 rounds the expanded weights once more; plain rows are in bf16 already.
      const DType type = type_of(c, n);
      const bool panel = dtype == DType::kBF16 && block_size(type).elements > 1 && c.n_rows > 8 &&
                         !rounds_activations(type);
      r.rest.push_back(dot_error(dtype, c.n_in, size) + (panel ? kBF16Unit * size : 0));
      r.rounding.push_back(rounding_bound(matrix, type_of(c, n), x, n));
    }
  return r;
}

TEST_P(EveryBackend, BlocksAgreeWithExpandedWeightsToTheRoundingOfActivations) {
  double worst = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message()
                 << dtype_name(c.rows.front().dtype) << ", " << c.rows.size() << " parts, "
                 << c.n_rows << " x " << c.n_in << " -> " << c.rows.back().end);
    const bool tiles = std::string(GetParam().name) == "cpu" && dtype() == DType::kBF16;
    const auto rounds = [&](DType type) {
      return c.n_rows <= 8 || (tiles && block_tiles(type) != nullptr);
    };
    const Results r = run(*backend, *reference, dtype(), c, c.n_rows % 2 == 0, rounds);
    double of_case = 0;
    for (size_t i = 0; i < r.got.size(); ++i) {
      const double error = std::abs(double{r.got[i]} - r.expected[i]);
      ASSERT_LE(error, r.rounding[i] + r.rest[i]) << "element " << i;
      if (r.rounding[i] > 0) of_case = std::max(of_case, error / r.rounding[i]);
    }
    worst = std::max(worst, of_case);
    // An error of none at all would mean that nothing was rounded.
    if (rounds(c.rows.front().dtype) && c.rows.back().end > 1) {
      EXPECT_GT(of_case, 1e-3);
    }
  }
  std::printf("worst error: %.3f of the bound\n", worst);
  RecordProperty("worst_share_of_bound", std::to_string(worst));
  EXPECT_LT(worst, 1);
}

TEST(BlockActivations, OutliersDoNotCoarsenTheOtherValues) {
  const auto backend = make_cpu_backend(DType::kF32);
  for (const DType type : kBlockTypes) {
    constexpr int64_t kIn = 512, kOut = 16;
    const BlockMatrix matrix({{0, kOut, type, nullptr}}, kIn, 5);
    const auto weights = backend->pack_linear(matrix.source);
    std::vector<float> x = random_values(3 * kIn, 9);
    // In the second row, which has zeros outside of the outlier's block: other blocks have one
    // term.
    constexpr int64_t kOutlierAt = 100;
    const int64_t block = block_size(type).elements;
    for (int64_t k = 0; k < kIn; ++k)
      if (k / block != kOutlierAt / block) x[static_cast<size_t>(kIn + k)] = 0;
    x[kIn + kOutlierAt] = 50;
    const DeviceTensor in(*backend, DType::kF32, {3, kIn}, x);
    const DeviceTensor out = unwritten(*backend, DType::kF32, {3, kOut});
    backend->linear({.weights = weights.get(), .x = in.view(), .out = out.view()});
    const std::vector<float> got = out.values();
    for (int64_t n = 0; n < kOut; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kIn; ++k)
        sum += double{x[static_cast<size_t>(kIn + k)]} *
               matrix.weights[static_cast<size_t>(n * kIn + k)];
      // The second term has scales a 254th of the first's.
      EXPECT_NEAR(got[static_cast<size_t>(kOut + n)], sum,
                  rounding_bound(matrix, type, x.data() + kIn, n) / 100)
          << dtype_name(type);
    }
  }
}

TEST_P(EveryBackend, BlocksGiveTheSameOnEveryNumberOfThreads) {
  for (const int64_t n_rows : {1, 3, 20}) {
    const Case c{{{0, 43, DType::kQ4_K, nullptr}, {43, 70, DType::kQ6_K, nullptr}}, 512, n_rows};
    set_threads(1);
    const auto product = [&] {
      return run(*backend, *reference, dtype(), c, false, [](DType) { return true; }).got;
    };
    const auto one = product();
    for (const int n : {2, 3, 5}) {
      set_threads(n);
      EXPECT_EQ(product(), one) << n << " threads";
    }
  }
}

TEST_P(EveryBackend, BlocksThatAreNotFiniteShow) {
  const BlockMatrix matrix({{0, 9, DType::kQ4_0, nullptr}}, 64, 3);
  const auto weights = backend->pack_linear(matrix.source);
  std::vector<float> in(64, 1.0f);
  in[40] = NAN;
  const DeviceTensor x(*backend, dtype(), {1, 64}, in);
  const DeviceTensor out = unwritten(*backend, DType::kF32, {1, 9});
  backend->linear({.weights = weights.get(), .x = x.view(), .out = out.view()});
  for (const float y : out.values()) EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace sluice::impl::test
