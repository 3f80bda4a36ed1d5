// Norms against the reference.

#include <array>

#include "parity/backends.h"
#include "parity/compare.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

struct NormCase {
  NormKind kind;
  int64_t n_rows, d;
  bool weight, bias, in_place;
  DType x_dtype, out_dtype;
  int64_t pad;
  float offset;  // added to every x: a mean far from zero is where a variance loses digits
};

struct NormInputs {
  std::vector<float> x, weight, bias;
};

constexpr float kEpsilon = 1e-5f;

std::vector<float> run(Backend& backend, const NormCase& c, const NormInputs& in) {
  const DeviceTensor x(backend, c.x_dtype, {c.n_rows, c.d}, in.x, c.pad);
  const DeviceTensor weight(backend, DType::kF32, {c.d}, in.weight);
  const DeviceTensor bias(backend, DType::kF32, {c.d}, in.bias);
  const DeviceTensor out = unwritten(backend, c.out_dtype, {c.n_rows, c.d}, c.pad);
  const DeviceTensor& to = c.in_place ? x : out;
  backend.norm({.kind = c.kind,
                .epsilon = kEpsilon,
                .x = x.view(),
                .weight = c.weight ? weight.view() : Tensor(),
                .bias = c.bias ? bias.view() : Tensor(),
                .out = to.view()});
  return to.values();
}

// With u the f32 unit: the mean errs by (d + 2) u mean|x|, so each centred value by that and its
// own rounding; the variance by twice that times the deviation plus (d + 2) u of itself; the
// inverse root by half the variance's relative error and 3 u.
std::vector<double> bounds(const NormCase& c, const NormInputs& in,
                           const std::vector<float>& expected) {
  std::vector<double> bound;
  const auto d = static_cast<double>(c.d);
  for (int64_t row = 0; row < c.n_rows; ++row) {
    const float* x = in.x.data() + row * c.d;
    double mean = 0, size = 0, largest = 0, variance = 0;
    for (int64_t i = 0; i < c.d; ++i) {
      mean += x[i] / d;
      size += std::abs(x[i]) / d;
      largest = std::max(largest, double{std::abs(x[i])});
    }
    const bool layer = c.kind == NormKind::kLayer;
    if (!layer) mean = 0;
    for (int64_t i = 0; i < c.d; ++i) variance += (x[i] - mean) * (x[i] - mean) / d;
    const double centred = layer ? kF32Unit * ((d + 2) * size + largest + std::abs(mean)) : 0;
    const double variance_error =
        2 * centred * std::sqrt(variance) + centred * centred + (d + 2) * kF32Unit * variance;
    const double inverse = 1 / std::sqrt(variance + kEpsilon);
    const double relative = 0.5 * variance_error / (variance + kEpsilon) + 3 * kF32Unit;
    for (int64_t i = 0; i < c.d; ++i) {
      const double weight = c.weight ? std::abs(in.weight[static_cast<size_t>(i)]) : 1;
      const double scaled = weight * inverse * std::abs(x[i] - mean);
      const double error = weight * inverse * centred + scaled * (relative + 3 * kF32Unit);
      bound.push_back(
          stored_error(c.in_place ? c.x_dtype : c.out_dtype, expected[bound.size()], error));
    }
  }
  return bound;
}

TEST_P(EveryBackend, NormAgreesWithTheReference) {
  struct Parts {
    bool weight, bias, in_place;
    int64_t pad;
    float offset;
  };
  const Parts parts[] = {{true, true, false, 0, 0},  {false, false, false, 3, 0},
                         {true, false, true, 0, 2},  {false, true, true, 5, 0},
                         {true, true, false, 0, 50}, {true, false, false, 1, -7}};
  const std::array kinds = {NormKind::kLayer, NormKind::kRms};
  const std::array<int64_t, 6> widths = {1, 3, 17, 64, 192, 320};
  const std::array dtypes = {DType::kF32, dtype()};
  for (const auto& [kind, d, p, x_dtype, out_dtype] :
       thinned(combinations(kinds, widths, parts, dtypes, dtypes), 5)) {
    if (p.in_place && x_dtype != out_dtype) continue;
    const NormCase c{kind,       d == 17 ? 129 : 7, d,         p.weight, p.bias,
                     p.in_place, x_dtype,           out_dtype, p.pad,    p.offset};
    SCOPED_TRACE(testing::Message() << (kind == NormKind::kRms ? "rms" : "layer") << ", width " << d
                                    << ", weight " << p.weight << ", bias " << p.bias
                                    << ", in place " << p.in_place << ", offset " << p.offset);
    NormInputs in{random_values(c.n_rows * d, 1), random_values(d, 2), random_values(d, 3)};
    for (float& x : in.x) x = rounded(x_dtype, x + p.offset);
    NormCase exact = c;
    exact.x_dtype = exact.out_dtype = DType::kF32;
    const auto expected = run(*reference, exact, in);
    EXPECT_CLOSE(run(*backend, c, in), expected, bounds(c, in, expected));
  }
}

// Queries and keys side by side in rows that hold more, as a layer has them: what lies behind stays
// as it is.
TEST_P(EveryBackend, NormOfHeadsAgreesWithTheNormOfEachAlone) {
  struct Case {
    int64_t n_rows, n_queries, n_keys, head_dim, n_behind;
  };
  const Case cases[] = {{1, 1, 1, 2, 0},   {7, 3, 1, 16, 16},   {1, 4, 2, 64, 128},
                        {37, 2, 2, 20, 3}, {2, 5, 1, 128, 128}, {3, 2, 1, 320, 5}};
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.n_queries << " + " << c.n_keys << " heads of "
                                    << c.head_dim << ", " << c.n_rows << " rows");
    const int64_t n_heads = c.n_queries + c.n_keys, width = n_heads * c.head_dim;
    const auto values = random_values(c.n_rows * (width + c.n_behind), 1, dtype());
    const std::vector<float> weights[] = {random_values(c.head_dim, 2),
                                          random_values(c.head_dim, 3)};
    const DeviceTensor rows(*backend, dtype(), {c.n_rows, width + c.n_behind}, values);
    const DeviceTensor query_weight(*backend, DType::kF32, {c.head_dim}, weights[0]);
    const DeviceTensor key_weight(*backend, DType::kF32, {c.head_dim}, weights[1]);
    backend->norm_heads({.epsilon = kEpsilon,
                         .query_weight = query_weight.view(),
                         .key_weight = key_weight.view(),
                         .n_queries = c.n_queries,
                         .x = Tensor(rows.view().bytes(), dtype(), {c.n_rows, n_heads, c.head_dim},
                                     backend->device())
                                  .with_row_stride(width + c.n_behind)});
    std::vector<float> expected = values;
    std::vector<double> bound(values.size(), 0.0);
    for (int64_t row = 0; row < c.n_rows; ++row)
      for (int64_t head = 0; head < n_heads; ++head) {
        const int64_t begin = row * (width + c.n_behind) + head * c.head_dim;
        const NormCase one{NormKind::kRms, 1,       c.head_dim, true, false,
                           true,           dtype(), dtype(),    0,    0};
        NormCase exact = one;
        exact.x_dtype = exact.out_dtype = DType::kF32;
        const NormInputs in{{values.begin() + begin, values.begin() + begin + c.head_dim},
                            weights[head < c.n_queries ? 0 : 1],
                            random_values(c.head_dim, 4)};
        const auto normed = run(*reference, exact, in);
        const auto errors = bounds(one, in, normed);
        std::copy(normed.begin(), normed.end(), expected.begin() + begin);
        std::copy(errors.begin(), errors.end(), bound.begin() + begin);
      }
    EXPECT_CLOSE(rows.values(), expected, bound);
  }
}

TEST_P(EveryBackend, NormOfZerosIsTheBias) {
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    const NormCase c{kind, 2, 17, true, true, false, DType::kF32, DType::kF32, 0, 0};
    const NormInputs in{std::vector<float>(34, 0.0f), random_values(17, 1), random_values(17, 2)};
    const auto got = run(*backend, c, in);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], in.bias[i % 17]);
  }
}

}  // namespace
}  // namespace sluice::impl::test
