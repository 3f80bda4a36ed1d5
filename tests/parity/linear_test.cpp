// Matrix products against the reference.

#include <cstdlib>

#include "parity/backends.h"
#include "parity/compare.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

struct LinearShape {
  int64_t n_rows, n_in, n_out;
};

// One row and a few (decoding), odd heights, more than a block of rows; widths below and near
// every panel width (12, 16, 24, 32) and vector length; depths that are not multiples of 4, and
// beyond one and two blocks of depth.
constexpr LinearShape kShapes[] = {
    {1, 1, 1},     {1, 3, 17},    {2, 17, 3},     {7, 64, 64},     {1, 320, 193}, {37, 17, 25},
    {8, 5, 12},    {9, 6, 13},    {16, 64, 48},   {17, 7, 385},    {129, 3, 11},  {300, 1, 7},
    {37, 192, 65}, {1, 1031, 50}, {3, 1031, 200}, {129, 513, 193}, {300, 66, 320}};

struct LinearOptions {
  const char* name;
  bool bias = false;
  Activation activation = Activation::kNone;
  bool accumulate = false;
  bool f32_out = false;
  int64_t x_pad = 0, out_pad = 0;
};

const LinearOptions kOptions[] = {
    {.name = "plain"},
    {.name = "bias", .bias = true},
    {.name = "relu", .bias = true, .activation = Activation::kRelu},
    {.name = "gelu", .bias = true, .activation = Activation::kGeluErf},
    {.name = "gelu tanh", .bias = true, .activation = Activation::kGeluTanh},
    {.name = "silu without bias", .activation = Activation::kSilu},
    {.name = "f32 out", .f32_out = true},
    {.name = "accumulate", .accumulate = true, .f32_out = true},
    {.name = "accumulate with bias", .bias = true, .accumulate = true, .f32_out = true},
    {.name = "strided x", .bias = true, .x_pad = 5},
    {.name = "strided out", .bias = true, .out_pad = 7},
    {.name = "strided both, f32 out, silu",
     .activation = Activation::kSilu,
     .f32_out = true,
     .x_pad = 1,
     .out_pad = 3},
};

// Larger products take one option each, in rotation, to keep the plain loops' time down.
constexpr int64_t kEveryOptionBelow = 200'000;

struct LinearInputs {
  LinearInputs(LinearShape s, DType dtype, uint32_t seed)
      : x(random_values(s.n_rows * s.n_in, seed, dtype)),
        weights(random_values(s.n_out * s.n_in, seed + 1)),
        bias(random_values(s.n_out, seed + 2)),
        old(random_values(s.n_rows * s.n_out, seed + 3)) {}
  std::vector<float> x, weights, bias, old;
};

std::vector<float> run(Backend& backend, DType dtype, LinearShape s, const LinearOptions& o,
                       const LinearInputs& in) {
  const auto weights = backend.pack_linear(
      matrix_source(s.n_out, s.n_in, in.weights, o.bias ? in.bias : std::vector<float>{}));
  const DeviceTensor x(backend, dtype, {s.n_rows, s.n_in}, in.x, o.x_pad);
  const DType out_dtype = o.f32_out ? DType::kF32 : dtype;
  const DeviceTensor out =
      o.accumulate ? DeviceTensor(backend, out_dtype, {s.n_rows, s.n_out}, in.old, o.out_pad)
                   : unwritten(backend, out_dtype, {s.n_rows, s.n_out}, o.out_pad);
  backend.linear({.weights = weights.get(),
                  .x = x.view(),
                  .activation = o.activation,
                  .accumulate = o.accumulate,
                  .out = out.view()});
  return out.values();
}

std::vector<double> bounds(DType dtype, LinearShape s, const LinearOptions& o,
                           const LinearInputs& in, const std::vector<float>& expected) {
  std::vector<double> bound;
  for (int64_t row = 0; row < s.n_rows; ++row)
    for (int64_t n = 0; n < s.n_out; ++n) {
      const size_t at = bound.size();
      double sum = o.bias ? std::abs(in.bias[static_cast<size_t>(n)]) : 0;
      if (o.accumulate) sum += std::abs(in.old[at]);
      const float* x = in.x.data() + row * s.n_in;
      const float* w = in.weights.data() + n * s.n_in;
      // 1.01: the packed weights are rounded, so a little larger than these may be.
      for (int64_t k = 0; k < s.n_in; ++k) sum += 1.01 * std::abs(double{x[k]} * w[k]);
      const double error =
          kActivationSlope * dot_error(dtype, s.n_in, sum) + activation_error(o.activation, sum);
      bound.push_back(stored_error(o.f32_out ? DType::kF32 : dtype, expected[at], error));
    }
  return bound;
}

std::vector<std::pair<LinearShape, LinearOptions>> linear_cases() {
  std::vector<std::pair<LinearShape, LinearOptions>> cases;
  size_t n_large = 0;
  for (const LinearShape& s : kShapes) {
    const bool small = s.n_rows * s.n_in * s.n_out < kEveryOptionBelow;
    for (size_t i = 0; i < (small ? std::size(kOptions) : 1); ++i)
      cases.emplace_back(s, kOptions[small ? i : n_large++ % std::size(kOptions)]);
  }
  return thinned(cases, 7);
}

TEST_P(EveryBackend, LinearAgreesWithTheReference) {
  for (const auto& [s, o] : linear_cases()) {
    SCOPED_TRACE(testing::Message()
                 << s.n_rows << " x " << s.n_in << " -> " << s.n_out << ", " << o.name);
    const LinearInputs in(s, dtype(), static_cast<uint32_t>(s.n_rows * 31 + s.n_in));
    LinearOptions exact = o;
    exact.f32_out = true;
    const auto expected = run(*reference, DType::kF32, s, exact, in);
    EXPECT_CLOSE(run(*backend, dtype(), s, o, in), expected, bounds(dtype(), s, o, in, expected));
  }
}

TEST_P(EveryBackend, LinearReadsEveryWeightOnce) {
  // Products of ones count the terms: exact in every dtype up to 256.
  for (const LinearShape s : {LinearShape{3, 251, 37}, LinearShape{20, 13, 100}}) {
    LinearInputs in(s, dtype(), 1);
    std::fill(in.x.begin(), in.x.end(), 1.0f);
    std::fill(in.weights.begin(), in.weights.end(), 1.0f);
    const auto got = run(*backend, dtype(), s, kOptions[0], in);
    for (const float x : got) ASSERT_EQ(x, static_cast<float>(s.n_in));
  }
}

TEST_P(EveryBackend, LinearOfOneRowGivesThatRowOfTheWhole) {
  const LinearShape s{37, 192, 65};
  const LinearInputs in(s, dtype(), 5);
  const auto whole = run(*backend, dtype(), s, kOptions[1], in);
  for (const int64_t row : {0, 17, 36}) {
    LinearInputs one = in;
    one.x.assign(in.x.begin() + row * s.n_in, in.x.begin() + (row + 1) * s.n_in);
    const std::vector<float> expected(whole.begin() + row * s.n_out,
                                      whole.begin() + (row + 1) * s.n_out);
    auto bound = bounds(dtype(), {1, s.n_in, s.n_out}, kOptions[1], one, expected);
    for (double& b : bound) b *= 2;  // both sides are rounded
    EXPECT_CLOSE(run(*backend, dtype(), {1, s.n_in, s.n_out}, kOptions[1], one), expected, bound);
  }
}

}  // namespace
}  // namespace sluice::impl::test
