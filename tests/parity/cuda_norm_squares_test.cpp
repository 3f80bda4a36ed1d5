// Sums of squares that a norm hands on to selection.

#include <array>

#include "parity/backends.h"
#include "parity/compare.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

struct NormCase {
  NormKind kind;
  int64_t d, pad;
  DType x_dtype, out_dtype;
  bool parts;  // weight and bias
  bool in_place = false;
};

struct Normed {
  std::vector<float> out;
  std::vector<double> squares;  // (n_rows, 2), empty where they were not asked for
};

Normed run(Backend& backend, const NormCase& c, const std::vector<float>& values,
           bool with_squares) {
  const auto n = static_cast<int64_t>(values.size()) / c.d;
  const DeviceTensor x(backend, c.x_dtype, {n, c.d}, values, c.pad);
  const DeviceTensor apart = unwritten(backend, c.out_dtype, {n, c.d}, c.pad);
  const DeviceTensor& out = c.in_place ? x : apart;
  const DeviceTensor weight(backend, DType::kF32, {c.d}, random_values(c.d, 2));
  const DeviceTensor bias(backend, DType::kF32, {c.d}, random_values(c.d, 3));
  const DeviceTensor squares = unwritten(backend, DType::kF32, {n + 1, 4});
  backend.norm({.kind = c.kind,
                .epsilon = 1e-5f,
                .x = x.view(),
                .weight = c.parts ? weight.view() : Tensor(),
                .bias = c.parts ? bias.view() : Tensor(),
                .out = out.view(),
                .squares = with_squares ? squares.view().rows_from(0, n) : Tensor()});
  Normed normed{out.values(), {}};
  if (!with_squares) return normed;
  const Buffer host = host_buffer(DType::kF32, {n + 1, 4});
  backend.download(squares.view(), host.view());
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_TRUE(std::isnan(host.view().row<float>(n)[i])) << "written behind the last row";
  normed.squares.resize(static_cast<size_t>(2 * n));
  std::memcpy(normed.squares.data(), host.view().bytes(), static_cast<size_t>(2 * n) * 8);
  return normed;
}

// Every second one from `first` on is the sum of a row's squares, but for d additions.
void expect_squares(const std::vector<double>& squares, size_t first,
                    const std::vector<float>& rows, int64_t d) {
  for (size_t row = 0; row * static_cast<size_t>(d) < rows.size(); ++row) {
    const float* x = rows.data() + static_cast<int64_t>(row) * d;
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += double{x[i]} * double{x[i]};
    const double got = squares[2 * row + first];
    if (std::isfinite(sum))
      EXPECT_LE(std::abs(got - sum), 2 * static_cast<double>(d) * 0x1p-53 * sum) << "row " << row;
    else
      EXPECT_FALSE(std::isfinite(got)) << "row " << row;
  }
}

// Random rows, zeros, and numbers at the ends of f32: alone, and between others.
std::vector<float> odd_rows(int64_t d, DType dtype) {
  const std::vector<float> special = {0,      -0.0f,  1e30f,    -3.3e38f,  1e-30f,
                                      1e-40f, 1e-45f, INFINITY, -INFINITY, NAN};
  const auto n = 3 + 2 * static_cast<int64_t>(special.size());
  std::vector<float> rows = random_values(n * d, 1, dtype);
  std::fill(rows.begin(), rows.begin() + d, 0.0f);
  for (size_t i = 0; i < special.size(); ++i) {
    float* alone = rows.data() + static_cast<int64_t>(3 + 2 * i) * d;
    std::fill(alone, alone + d, 0.0f);
    alone[d * 2 / 3] = alone[d + d * 2 / 3] = rounded(dtype, special[i]);
  }
  return rows;
}

TEST_P(EveryBackend, ANormHandsOnSumsOfSquares) {
  ASSERT_TRUE(backend->writes_squares());
  const std::array kinds = {NormKind::kLayer, NormKind::kRms};
  const std::array<int64_t, 8> widths = {1, 8, 333, 768, 2056, 4096, 4104, 5000};
  const std::array<int64_t, 3> pads = {0, 3, 8};
  const std::array dtypes = {DType::kF32, dtype()};
  const std::array both = {false, true};
  for (const auto& [kind, d, pad, x_dtype, out_dtype, parts, in_place] :
       thinned(combinations(kinds, widths, pads, dtypes, dtypes, both, both), 7)) {
    if (in_place && x_dtype != out_dtype) continue;
    const NormCase c{kind, d, pad, x_dtype, out_dtype, parts, in_place};
    SCOPED_TRACE(testing::Message()
                 << (kind == NormKind::kRms ? "rms" : "layer") << ", width " << d << "+" << pad
                 << ", " << dtype_name(x_dtype) << " to " << dtype_name(out_dtype)
                 << ", weight and bias " << parts << ", in place " << in_place);
    const std::vector<float> x = odd_rows(d, x_dtype);
    const Normed normed = run(*backend, c, x, true);
    expect_squares(normed.squares, 0, x, d);
    expect_squares(normed.squares, 1, normed.out, d);
    EXPECT_SAME_BITS(normed.out, run(*backend, c, x, false).out);
  }
}

}  // namespace
}  // namespace sluice::impl::test
