// Projection on a basis, its residual and the image of the weights against their definitions,
// docs/algorithm.md section 4.

#include <array>

#include "parity/subspace_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// What the issue promises of the gate, in parts of ||x||.
constexpr double kResidualError = 1e-5;

struct Size {
  int64_t n_rows, n_in, rank;
};

// One row and a few (read row by row), many (packed products); widths below, at and beyond a cache
// line, ranks below and beyond the number of groups, and one with more groups than that.
constexpr Size kSizes[] = {{1, 1, 1},    {1, 17, 3},   {3, 64, 64},   {1, 320, 40}, {2, 33, 33},
                           {33, 48, 20}, {40, 320, 7}, {1, 600, 530}, {129, 65, 9}, {5, 1031, 31}};

SubspaceCase random_case(Size s, DType dtype, uint32_t seed) {
  return {s.n_rows, s.n_in, s.rank, orthonormal_rows(s.rank, s.n_in, seed),
          random_values(s.n_rows * s.n_in, seed + 1, dtype)};
}

void expect_exact_residuals(const SubspaceCase& c, DType dtype, const Projection& got) {
  for (int64_t row = 0; row < c.n_rows; ++row)
    EXPECT_NEAR(got.residuals[static_cast<size_t>(row)],
                c.explicit_residual(dtype, got.coordinates, row), kResidualError)
        << "row " << row;
}

TEST_P(EveryImplementation, ProjectionIsWhatItsDefinitionSays) {
  for (const auto& [s, pad] : thinned(combinations(kSizes, std::array<int64_t, 2>{0, 3}), 3)) {
    SCOPED_TRACE(testing::Message()
                 << s.n_rows << " x " << s.n_in << " on " << s.rank << ", pad " << pad);
    const SubspaceCase c = random_case(s, dtype(), static_cast<uint32_t>(s.n_in));
    const Projection got = c.project(*backend, pad);
    std::vector<float> expected;
    std::vector<double> bounds;
    for (int64_t row = 0; row < s.n_rows; ++row)
      for (int64_t j = 0; j < s.rank; ++j) {
        double sum = 0, absolute_sum = 0;
        for (int64_t i = 0; i < s.n_in; ++i) {
          const double term = double{c.x[static_cast<size_t>(row * s.n_in + i)]} *
                              rounded(dtype(), c.vectors[static_cast<size_t>(j * s.n_in + i)]);
          sum += term;
          absolute_sum += std::abs(term);
        }
        expected.push_back(static_cast<float>(sum));
        bounds.push_back(stored_error(dtype(), sum, dot_error(dtype(), s.n_in, absolute_sum)));
      }
    EXPECT_CLOSE(got.coordinates, expected, bounds);
    expect_exact_residuals(c, dtype(), got);
  }
}

// Rows a known distance from the span; at every size of the numbers.
TEST_P(EveryBackend, PlantedResidualsAreFoundHoweverSmall) {
  constexpr int64_t kIn = 320, kRank = 40;
  const std::array<int64_t, 2> heights = {1, 40};
  const std::array sizes = {1e-15, 1.0, 1e15};
  const std::array distances = {0.5, 1e-1, 4e-2, 3.2e-2, 3e-2, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6};
  for (const auto& [n_rows, size, planted] : thinned(combinations(heights, sizes, distances), 7)) {
    SCOPED_TRACE(testing::Message() << n_rows << " rows of size " << size << ", " << planted);
    // The last direction stands outside of the basis.
    const std::vector<float> all = orthonormal_rows(kRank + 1, kIn, 3);
    SubspaceCase c{n_rows, kIn, kRank, {all.begin(), all.begin() + kRank * kIn}, {}};
    std::vector<float> parts = random_values(n_rows * kRank, 4);
    // One coordinate outweighs all others, as in trained models: the formula errs most.
    for (int64_t row = 0; row < n_rows; row += 2) parts[static_cast<size_t>(row * kRank)] = 1e3f;
    for (int64_t row = 0; row < n_rows; ++row) {
      const float* part = parts.data() + row * kRank;
      const double inside = std::sqrt(dot(part, part, kRank));
      for (int64_t i = 0; i < kIn; ++i) {
        double x = planted / std::sqrt(1 - planted * planted) * inside *
                   all[static_cast<size_t>(kRank * kIn + i)];
        for (int64_t j = 0; j < kRank; ++j)
          x += double{part[j]} * all[static_cast<size_t>(j * kIn + i)];
        c.x.push_back(rounded(dtype(), static_cast<float>(size * x)));
      }
    }
    const Projection got = c.project(*backend);
    expect_exact_residuals(c, dtype(), got);
    // In bf16 the rounding of x, V and the coordinates is part of the residual.
    if (dtype() == DType::kBF16) continue;
    for (const float residual : got.residuals) EXPECT_NEAR(residual, planted, kResidualError);
  }
}

// Nothing is assumed of V: neither unit length nor right angles.
TEST_P(EveryBackend, ResidualsHoldForDirectionsThatAreNotOrthonormal) {
  for (const Size& s : {Size{1, 320, 40}, Size{2, 65, 17}, Size{1, 1031, 31}, Size{40, 96, 12}})
    for (const float mixed : {1e-4f, 1e-2f, 0.3f}) {
      SCOPED_TRACE(testing::Message() << s.n_in << " on " << s.rank << ", mixed " << mixed);
      SubspaceCase c = random_case(s, dtype(), 17);
      for (int64_t i = s.n_in; i < s.rank * s.n_in; ++i)
        c.vectors[static_cast<size_t>(i)] += mixed * c.vectors[static_cast<size_t>(i - s.n_in)];
      expect_exact_residuals(c, dtype(), c.project(*backend));
    }
}

TEST_P(EveryImplementation, ZeroRowsMissNothingAndRowsWithoutANormEverything) {
  for (const int64_t n_rows : {4, 40}) {
    const Size s{n_rows, 70, 11};
    SubspaceCase c = random_case(s, dtype(), 5);
    const Projection before = c.project(*backend);
    std::fill_n(c.x.begin(), s.n_in, 0.0f);
    c.x[static_cast<size_t>(s.n_in)] = INFINITY;
    c.x[static_cast<size_t>(2 * s.n_in + 69)] = NAN;
    const Projection got = c.project(*backend);
    EXPECT_EQ(got.residuals[0], 0.0f);
    EXPECT_EQ(got.residuals[1], 1.0f);
    EXPECT_EQ(got.residuals[2], 1.0f);
    for (int64_t row = 3; row < n_rows; ++row)
      EXPECT_EQ(got.residuals[static_cast<size_t>(row)],
                before.residuals[static_cast<size_t>(row)]);
  }
}

std::vector<float> multiply(Backend& backend, const LinearWeights& weights, int64_t n_rows,
                            const std::vector<float>& x) {
  const DeviceTensor in(backend, backend.compute_dtype(), {n_rows, weights.n_in()}, x);
  const DeviceTensor out = unwritten(backend, DType::kF32, {n_rows, weights.n_out()});
  backend.linear({.weights = &weights, .x = in.view(), .out = out.view()});
  return out.values();
}

// A basis of full rank with an open gate is the dense layer.
TEST_P(EveryImplementation, ImageOfAFullBasisEqualsTheMatrix) {
  const double unit = dtype() == DType::kBF16 ? kBF16Unit : kF32Unit;
  for (const int64_t n_rows : {1, 35}) {
    constexpr int64_t kIn = 96, kOut = 50;
    const SubspaceCase c = random_case({n_rows, kIn, kIn}, dtype(), 7);
    const Projection got = c.project(*backend);
    // Rounding of V counts twice, that of the coordinates once, and in f32 what sums add.
    for (const float residual : got.residuals)
      EXPECT_LE(residual, dtype() == DType::kBF16 ? 3 * kBF16Unit : kResidualError);
    const std::vector<float> weights = random_values(kOut * kIn, 8), bias = random_values(kOut, 9);
    const auto source = matrix_source(kOut, kIn, weights, bias);
    const auto basis = backend->make_basis(c.vectors, kIn, kIn);
    const auto fast =
        multiply(*backend, *backend->pack_image(source, *basis), n_rows, got.coordinates);
    std::vector<float> expected;
    std::vector<double> bounds;
    for (int64_t row = 0; row < n_rows; ++row)
      for (int64_t n = 0; n < kOut; ++n) {
        const float *x = c.x.data() + row * kIn, *w = weights.data() + n * kIn;
        expected.push_back(static_cast<float>(dot(w, x, kIn) + bias[static_cast<size_t>(n)]));
        // W applied to what is missed; the image's rounding and sums, each element of which errs by
        // a part of ||w||, so that their sum with the coordinates errs by sqrt(rank) of that; and
        // the sums of the product. 1.1: V is orthonormal to its rounding only.
        const double size = 1.1 * std::sqrt(dot(w, w, kIn) * dot(x, x, kIn));
        const double relative = got.residuals[static_cast<size_t>(row)] +
                                std::sqrt(double{kIn}) * (unit + dot_error(DType::kF32, kIn, 1)) +
                                dot_error(dtype(), kIn, 1);
        bounds.push_back(size * relative + kF32Unit * std::abs(bias[static_cast<size_t>(n)]));
      }
    EXPECT_CLOSE(fast, expected, bounds);
  }
}

TEST_P(EveryBackend, ImagesAgreeWithTheReference) {
  for (const auto& [n_in, rank, n_out] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {33, 5, 17}, {130, 40, 65}, {64, 64, 3}}) {
    SCOPED_TRACE(testing::Message() << n_out << " x " << n_in << " on " << rank);
    const auto vectors = orthonormal_rows(rank, n_in, 11);
    const auto weights = random_values(n_out * n_in, 12);
    const auto source = matrix_source(n_out, n_in, weights);
    // Each coordinate alone reads one column of the image.
    std::vector<float> x(static_cast<size_t>(rank * rank));
    for (int64_t j = 0; j < rank; ++j) x[static_cast<size_t>(j * rank + j)] = 1;
    const auto image = [&, n_in = n_in, rank = rank](Backend& on) {
      const auto basis = on.make_basis(vectors, rank, n_in);
      return multiply(on, *on.pack_image(source, *basis), rank, x);
    };
    const auto expected = image(*reference);
    std::vector<double> bounds;
    for (const float value : expected)  // sum |w v| <= ||w|| and |w| <= 1
      // Both sides are rounded: twice the error of one.
      bounds.push_back(
          2 * stored_error(dtype(), value, dot_error(DType::kF32, n_in, 1.1 * std::sqrt(n_in))));
    EXPECT_CLOSE(image(*backend), expected, bounds);
  }
}

TEST_P(EveryBackend, ProjectionDoesNotDependOnThreads) {
  for (const Size& s : {Size{1, 1031, 200}, Size{70, 320, 33}}) {
    const SubspaceCase c = random_case(s, dtype(), 13);
    set_threads(1);
    const Projection one = c.project(*backend);
    for (const int count : {2, 3}) {
      set_threads(count);
      const Projection more = c.project(*backend);
      EXPECT_SAME_BITS(more.coordinates, one.coordinates) << count << " threads";
      EXPECT_SAME_BITS(more.residuals, one.residuals) << count << " threads";
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
