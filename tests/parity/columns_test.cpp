// Graded rows, and products that leave the columns of zeros unread, against the reference.

#include "parity/backends.h"
#include "parity/compare.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

struct ColumnsShape {
  int64_t n_rows, n_in, n_out;
};
// Heights below, at and beyond a cache line; fewer and more columns than are read at once.
constexpr ColumnsShape kShapes[] = {{1, 1, 1},     {1, 3, 17},   {2, 17, 3},     {1, 64, 64},
                                    {3, 320, 193}, {1, 9, 1031}, {1, 1031, 200}, {4, 33, 31}};

struct ColumnsOptions {
  const char* name;
  double kept = 1;
  bool bias = false;
  Activation activation = Activation::kNone;
  bool accumulate = false;
  bool f32_out = false;
  int64_t pad = 0;
};
const ColumnsOptions kOptions[] = {
    {.name = "full rows"},
    {.name = "a few kept", .kept = 0.05, .bias = true},
    {.name = "half kept, gelu", .kept = 0.5, .bias = true, .activation = Activation::kGeluTanh},
    {.name = "rows of zeros", .kept = 0, .bias = true, .f32_out = true},
    {.name = "accumulate", .kept = 0.3, .bias = true, .accumulate = true, .f32_out = true},
    {.name = "strided", .kept = 0.5, .activation = Activation::kRelu, .pad = 3}};

struct ColumnsInputs {
  ColumnsInputs(ColumnsShape s, const ColumnsOptions& o, DType dtype)
      : x(random_values(s.n_rows * s.n_in, 1, dtype)),
        weights(random_values(s.n_out * s.n_in, 2)),
        bias(o.bias ? random_values(s.n_out, 3) : std::vector<float>{}),
        old(random_values(s.n_rows * s.n_out, 4)) {
    const std::vector<float> lots = random_values(s.n_rows * s.n_in, 5);
    for (size_t i = 0; i < x.size(); ++i)
      if ((lots[i] + 1) / 2 >= o.kept) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  std::vector<float> x, weights, bias, old;
};

// By columns, or the dense product of the same.
std::vector<float> run(Backend& backend, DType dtype, ColumnsShape s, const ColumnsOptions& o,
                       const ColumnsInputs& in, bool by_columns) {
  const auto source = matrix_source(s.n_out, s.n_in, in.weights, in.bias);
  const DeviceTensor x(backend, dtype, {s.n_rows, s.n_in}, in.x, o.pad);
  const DType out_dtype = o.f32_out ? DType::kF32 : dtype;
  const DeviceTensor out = o.accumulate
                               ? DeviceTensor(backend, out_dtype, {s.n_rows, s.n_out}, in.old)
                               : unwritten(backend, out_dtype, {s.n_rows, s.n_out}, o.pad);
  if (by_columns)
    backend.linear_columns({.weights = backend.pack_columns(source).get(),
                            .x = x.view(),
                            .activation = o.activation,
                            .accumulate = o.accumulate,
                            .out = out.view()});
  else
    backend.linear({.weights = backend.pack_linear(source).get(),
                    .x = x.view(),
                    .activation = o.activation,
                    .accumulate = o.accumulate,
                    .out = out.view()});
  return out.values();
}

TEST_P(EveryBackend, ColumnsAgreeWithTheReferenceAndWithTheDenseProduct) {
  for (const auto& [s, o] : thinned(combinations(kShapes, kOptions), 5)) {
    SCOPED_TRACE(testing::Message()
                 << s.n_rows << " x " << s.n_in << " -> " << s.n_out << ", " << o.name);
    const ColumnsInputs in(s, o, dtype());
    ColumnsOptions exact = o;
    exact.f32_out = true;
    const auto expected = run(*reference, DType::kF32, s, exact, in, true);
    std::vector<double> bounds, twice;
    for (int64_t row = 0; row < s.n_rows; ++row)
      for (int64_t n = 0; n < s.n_out; ++n) {
        const size_t at = bounds.size();
        double sum = o.bias ? std::abs(in.bias[static_cast<size_t>(n)]) : 0;
        if (o.accumulate) sum += std::abs(in.old[at]);
        // 1.01: the packed weights are rounded, so a little larger than these may be.
        for (int64_t k = 0; k < s.n_in; ++k)
          sum += 1.01 * std::abs(double{in.x[static_cast<size_t>(row * s.n_in + k)]} *
                                 in.weights[static_cast<size_t>(n * s.n_in + k)]);
        const double error = kActivationSlope * dot_error(dtype(), s.n_in, sum) +
                             activation_error(o.activation, sum);
        bounds.push_back(stored_error(o.f32_out ? DType::kF32 : dtype(), expected[at], error));
        twice.push_back(2 * bounds.back());
      }
    const auto got = run(*backend, dtype(), s, o, in, true);
    EXPECT_CLOSE(got, expected, bounds);
    EXPECT_CLOSE(got, run(*backend, dtype(), s, o, in, false), twice);
  }
}

TEST_P(EveryBackend, ColumnsOfZerosAreNotRead) {
  // A product that read them would meet NaN.
  const ColumnsShape s{2, 40, 50};
  const ColumnsOptions o{.name = "half kept", .kept = 0.5};
  ColumnsInputs in(s, o, dtype());
  std::copy_n(in.x.begin(), s.n_in, in.x.begin() + s.n_in);
  for (int64_t k = 0; k < s.n_in; ++k)
    if (in.x[static_cast<size_t>(k)] == 0)
      for (int64_t n = 0; n < s.n_out; ++n) in.weights[static_cast<size_t>(n * s.n_in + k)] = NAN;
  for (const float y : run(*backend, dtype(), s, o, in, true)) ASSERT_TRUE(std::isfinite(y));
}

TEST_P(EveryBackend, ColumnsDoNotDependOnThreads) {
  const ColumnsShape s{2, 500, 321};
  const ColumnsInputs in(s, kOptions[2], dtype());
  set_threads(1);
  const auto one = run(*backend, dtype(), s, kOptions[2], in, true);
  for (const int count : {2, 3}) {
    set_threads(count);
    EXPECT_SAME_BITS(run(*backend, dtype(), s, kOptions[2], in, true), one) << count << " threads";
  }
}

struct Graded {
  std::vector<float> x;
  std::vector<int32_t> kept;
};

Graded grade(Backend& backend, DType dtype, int64_t n_in, const std::vector<float>& x,
             double epsilon, bool in_place = false) {
  const auto n_rows = static_cast<int64_t>(x.size()) / n_in;
  const DeviceTensor in(backend, dtype, {n_rows, n_in}, x, 3);
  const DeviceTensor out = unwritten(backend, dtype, {n_rows, n_in}, 2);
  Graded result;
  result.kept.assign(static_cast<size_t>(n_rows), -1);
  const DeviceTensor& to = in_place ? in : out;
  backend.grade({.x = in.view(), .epsilon = epsilon, .graded = to.view(), .kept = result.kept});
  result.x = to.values();
  return result;
}

TEST_P(EveryImplementation, GradingKeepsTheFewestThatHoldTheEnergy) {
  // Squares 9, 16, 1, 0, 1, 4: 31 in all.
  const std::vector<float> x = {3, -4, 1, -0.0f, -1, 2};
  const auto kept_with = [&](double squared) {
    return grade(*backend, dtype(), 6, x, std::sqrt(squared / 31)).x;
  };
  EXPECT_EQ(grade(*backend, dtype(), 6, x, 0).x, (std::vector<float>{3, -4, 1, 0, -1, 2}));
  EXPECT_EQ(kept_with(0.9), (std::vector<float>{3, -4, 1, 0, -1, 2}));
  EXPECT_EQ(kept_with(1.1), (std::vector<float>{3, -4, 0, 0, -1, 2}));  // ties by index
  EXPECT_EQ(kept_with(2.1), (std::vector<float>{3, -4, 0, 0, 0, 2}));
  EXPECT_EQ(kept_with(5.9), (std::vector<float>{3, -4, 0, 0, 0, 2}));
  EXPECT_EQ(kept_with(6.1), (std::vector<float>{3, -4, 0, 0, 0, 0}));
  EXPECT_EQ(kept_with(32), std::vector<float>(6, 0.0f));
  EXPECT_EQ(grade(*backend, dtype(), 6, x, 0.3, true).kept, (std::vector<int32_t>{3}));
}

// Rows of every kind: plain, mostly zeros, a few values over and over (sums that end exactly on the
// budget), magnitudes over the whole range of f32, zeros only, one number, and without a norm.
std::vector<float> rows_of_every_kind(int64_t n, DType dtype) {
  std::vector<float> x;
  const auto add = [&](auto&& element) {
    const std::vector<float> random = random_values(n, static_cast<uint32_t>(x.size()) + 1);
    for (int64_t i = 0; i < n; ++i)
      x.push_back(rounded(dtype, element(random[static_cast<size_t>(i)], i)));
  };
  add([](float r, int64_t) { return r; });
  add([](float r, int64_t) { return r > 0.9f ? r : 0.0f; });
  add([](float r, int64_t) { return r > 0 ? 1.0f : -1.0f; });
  add([](float r, int64_t) { return std::round(3 * r); });
  add([](float r, int64_t) { return std::copysign(std::exp(80 * r), r); });
  add([](float r, int64_t) { return 1e-44f * std::round(10 * r); });
  add([](float, int64_t) { return 0.0f; });
  add([](float, int64_t i) { return i == 0 ? 5.0f : 0.0f; });
  add([](float r, int64_t i) { return i == 0 ? INFINITY : std::round(r); });
  add([](float r, int64_t i) { return i == 0 ? NAN : std::round(r); });
  return x;
}

TEST_P(EveryBackend, GradingMarksWhatTheReferenceMarks) {
  for (const int64_t n : {1, 2, 64, 1000, 3072}) {
    const std::vector<float> x = rows_of_every_kind(n, dtype());
    for (const double epsilon :
         thinned({0.0, 1e-9, 1e-3, 0.1, 0.25, 0.5, std::sqrt(0.5), 0.9, 1.0, 2.0}, 3)) {
      SCOPED_TRACE(testing::Message() << n << " elements, epsilon " << epsilon);
      const Graded expected = grade(*reference, dtype(), n, x, epsilon);
      for (const bool in_place : {false, true}) {
        const Graded got = grade(*backend, dtype(), n, x, epsilon, in_place);
        EXPECT_EQ(got.kept, expected.kept);
        EXPECT_SAME_BITS(got.x, expected.x);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
