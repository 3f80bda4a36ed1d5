// The register-tile kernels that run on this CPU, tile by tile, against float64.

#include "backend/cpu/gemm/gemm.h"

#include "backend/cpu/attention/refine/tile_plan.h"
#include "parity/backends.h"
#include "parity/compare.h"
#include "parity/refine_case.h"

namespace sluice::impl::cpu::gemm {
namespace {

using test::random_values;

struct NamedKernel {
  const char* name;
  const Kernel* kernel;  // null where this CPU has no such instructions
};
void PrintTo(const NamedKernel& k, std::ostream* out) { *out << k.name; }

class EveryKernel : public testing::TestWithParam<NamedKernel> {
 protected:
  void SetUp() override {
    if (GetParam().kernel == nullptr) GTEST_SKIP() << "this CPU has no such instructions";
  }
  const Kernel& kernel() const { return *GetParam().kernel; }
};

// Numbers as the kernel's dtype stores them, in bytes.
std::vector<std::byte> stored(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(element_bytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    const BFloat16 narrow = to_bfloat16(values[i]);
    if (dtype == DType::kBF16)
      std::memcpy(bytes.data() + i * sizeof(narrow), &narrow, sizeof(narrow));
    else
      std::memcpy(bytes.data() + i * sizeof(float), &values[i], sizeof(float));
  }
  return bytes;
}

struct TileCase {
  int64_t rows, n, k;
  bool accumulate;
};

// Runs one tile and compares; C has guard rows and columns that must stay.
void check_tile(const Kernel& kernel, const TileCase& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.n << " of " << kernel.nr
                                  << " columns, k " << c.k << (c.accumulate ? ", accumulate" : ""));
  const int64_t padded_k = kernel.padded_k(c.k), a_stride = padded_k + 3, c_stride = kernel.nr + 2;
  auto a = random_values(kernel.mr * a_stride, 1, kernel.a_dtype);
  const auto b = random_values(c.n * c.k, 2, kernel.b_dtype);  // (n, k)
  std::vector<std::byte> panel(static_cast<size_t>(kernel.panel_elements(c.k)) *
                                   static_cast<size_t>(element_bytes(kernel.b_dtype)),
                               std::byte{0xff});  // NaN wherever packing leaves a gap
  pack_panel_rows(kernel, b.data(), c.k, c.n, c.k, panel.data());

  constexpr float kGuard = -12345.0f;
  std::vector<float> out(static_cast<size_t>((kernel.mr + 1) * c_stride), kGuard);
  auto expected = out;
  std::vector<double> bounds(out.size(), 0.0);
  const auto old = random_values(kernel.mr * kernel.nr, 3);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t n = 0; n < kernel.nr; ++n) {
      const auto at = static_cast<size_t>(i * c_stride + n);
      const double start = c.accumulate ? old[static_cast<size_t>(i * kernel.nr + n)] : 0;
      double sum = start, absolute = std::abs(start);
      for (int64_t k = 0; k < c.k && n < c.n; ++k) {
        const double product =
            double{a[static_cast<size_t>(i * a_stride + k)]} * b[static_cast<size_t>(n * c.k + k)];
        sum += product;
        absolute += std::abs(product);
      }
      if (c.accumulate) out[at] = static_cast<float>(start);
      expected[at] = static_cast<float>(sum);
      bounds[at] = test::dot_error(kernel.a_dtype, c.k, absolute);
    }
  const auto a_bytes = stored(kernel.a_dtype, a);
  const UsedKernel used(kernel);
  kernel.tiles[c.rows - 1]({.a = a_bytes.data(),
                            .a_stride = a_stride,
                            .b = panel.data(),
                            .k = padded_k,
                            .c = out.data(),
                            .c_stride = c_stride,
                            .accumulate = c.accumulate});
  EXPECT_CLOSE(out, expected, bounds);
}

TEST_P(EveryKernel, EveryTileHeightAgreesWithFloat64) {
  for (int64_t rows = 1; rows <= kernel().mr; ++rows)
    for (const int64_t k : {1, 2, 3, 4, 5, 7, 8, 12, 17, 64, 130, 512})
      for (const bool accumulate : {false, true})
        check_tile(kernel(), {rows, kernel().nr, k, accumulate});
}

TEST_P(EveryKernel, PanelsOfEveryWidthArePaddedWithZeros) {
  for (int64_t n = 1; n <= kernel().nr; ++n) check_tile(kernel(), {kernel().mr, n, 13, false});
}

// A tile of rows, all of them x, over a panel, added to ones: (rows, nr).
std::vector<float> multiply_rows(const Kernel& kernel, int64_t rows, const std::vector<float>& x,
                                 const std::vector<float>& weights) {
  const auto k = std::ssize(x);
  std::vector<std::byte> panel(static_cast<size_t>(kernel.panel_elements(k)) *
                               static_cast<size_t>(element_bytes(kernel.b_dtype)));
  pack_panel_rows(kernel, weights.data(), k, kernel.nr, k, panel.data());
  std::vector<float> all;
  for (int64_t i = 0; i < rows; ++i) all.insert(all.end(), x.begin(), x.end());
  const auto a = stored(kernel.a_dtype, all);
  std::vector<float> out(static_cast<size_t>(rows * kernel.nr), 1.0f);
  const UsedKernel used(kernel);
  kernel.tiles[rows - 1]({.a = a.data(),
                          .a_stride = k,
                          .b = panel.data(),
                          .k = k,
                          .c = out.data(),
                          .c_stride = kernel.nr,
                          .accumulate = true});
  return out;
}

// Refined attention relies on it: what a query does not open is zeros between what it does.
TEST_P(EveryKernel, StepsOfZerosChangeNoBit) {
  const int64_t step = std::max<int64_t>(16, kernel().k_step), nr = kernel().nr;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const auto first = random_values(step, seed, kernel().a_dtype);
    const auto last = random_values(step, seed + 100, kernel().a_dtype);
    const auto b = random_values(nr * 3 * step, seed + 200, kernel().b_dtype);  // (nr, 3 steps)
    std::vector<float> without;
    for (int64_t n = 0; n < nr; ++n)
      for (int64_t k = 0; k < 3 * step; ++k)
        if (k / step != 1) without.push_back(b[static_cast<size_t>(n * 3 * step + k)]);
    std::vector<float> gap = first, joined = first;
    gap.resize(static_cast<size_t>(2 * step), 0.0f);
    for (auto* x : {&gap, &joined}) x->insert(x->end(), last.begin(), last.end());
    for (const int64_t rows : {int64_t{1}, kernel().mr})
      EXPECT_EQ(multiply_rows(kernel(), rows, gap, b),
                multiply_rows(kernel(), rows, joined, without));
  }
}

TEST(TilePlan, GatheredClustersBeginAtStepsOfTheKernel) {
  const test::RefineCase c{.n_tokens = 1024, .head_dim = 64, .tile = 1};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const refine::TilePlan plan(c.spec(dtype));
    EXPECT_TRUE(plan.mixed);
    EXPECT_EQ(plan.cluster_align % plan.shape.kernel.k_step, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryKernel,
                         testing::Values(NamedKernel{"f32", &kernel_f32()},
                                         NamedKernel{"f32_bf16", &kernel_f32_bf16()},
                                         NamedKernel{"bfmmla", kernel_bfmmla()},
                                         NamedKernel{"amx", kernel_amx()}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(GemmKernel, OfADTypeTakesWeightsOfThatDType) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) EXPECT_EQ(kernel_for(dtype).b_dtype, dtype);
}

}  // namespace
}  // namespace sluice::impl::cpu::gemm
