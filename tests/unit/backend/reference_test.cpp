// The reference itself, where an answer is known without it: everything else is compared with it.

#include <gtest/gtest.h>

#include <cmath>

#include "parity/attend_case.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

class Reference : public testing::TestWithParam<DType> {
 protected:
  const std::unique_ptr<Backend> backend = make_reference_backend(GetParam());
};

TEST_P(Reference, EqualScoresAverageTheVisibleValues) {
  const AttendCase c{.n_tokens = 4, .head_dim = 2, .n_heads = 1, .n_kv_heads = 1, .window = 2};
  AttendInputs in(c, GetParam());
  std::fill(in.queries.begin(), in.queries.end(), 0.0f);
  for (size_t i = 0; i < 8; ++i) in.values[i] = static_cast<float>(i);
  // Values of positions 0 ... 3 are (0, 1), (2, 3), (4, 5), (6, 7); each sees itself and one back.
  EXPECT_EQ(attend(*backend, GetParam(), c, in), (std::vector<float>{0, 1, 1, 2, 3, 4, 5, 6}));
  AttendCase all = c;
  all.window = 0;
  all.causal = false;
  EXPECT_EQ(attend(*backend, GetParam(), all, in), (std::vector<float>{3, 4, 3, 4, 3, 4, 3, 4}));
}

TEST_P(Reference, HeadsOfAGroupShareTheirKeys) {
  const AttendCase c{.n_tokens = 1, .head_dim = 1, .n_heads = 4, .n_kv_heads = 2};
  AttendInputs in(c, GetParam());
  in.values[c.cache_at(0, 0, 0)] = 5;
  in.values[c.cache_at(0, 1, 0)] = 7;
  EXPECT_EQ(attend(*backend, GetParam(), c, in), (std::vector<float>{5, 5, 7, 7}));
}

TEST_P(Reference, RightAnglesSwapThePairs) {
  const DeviceTensor cosine(*backend, DType::kF32, {1, 2}, {0, 0});
  const DeviceTensor sine(*backend, DType::kF32, {1, 2}, {1, 1});
  const auto rotated = [&](RotaryStyle style) {
    const DeviceTensor x(*backend, GetParam(), {1, 1, 5}, {1, 2, 3, 4, 5});
    backend->rotate({.style = style,
                     .cosine = cosine.view(),
                     .sine = sine.view(),
                     .n_tokens = 1,
                     .first_position = 0,
                     .x = x.view()});
    return x.values();
  };
  EXPECT_EQ(rotated(RotaryStyle::kHalves), (std::vector<float>{-3, -4, 1, 2, 5}));
  EXPECT_EQ(rotated(RotaryStyle::kInterleaved), (std::vector<float>{-2, 1, -4, 3, 5}));
}

TEST_P(Reference, NormsGiveRowsOfUnitSize) {
  const DeviceTensor x(*backend, DType::kF32, {1, 4}, {1, 3, 1, 3});
  const DeviceTensor weight(*backend, DType::kF32, {4}, {1, 2, 1, 2});
  const DeviceTensor bias(*backend, DType::kF32, {4}, {0, 0, 10, 10});
  const DeviceTensor out = unwritten(*backend, DType::kF32, {1, 4});
  backend->norm({.kind = NormKind::kLayer,
                 .epsilon = 0,
                 .x = x.view(),
                 .weight = weight.view(),
                 .bias = bias.view(),
                 .out = out.view()});
  EXPECT_EQ(out.values(), (std::vector<float>{-1, 2, 9, 12}));
  const DeviceTensor y(*backend, DType::kF32, {1, 2}, {1, 7});
  backend->norm({.kind = NormKind::kRms,
                 .epsilon = 0,
                 .x = y.view(),
                 .weight = {},
                 .bias = {},
                 .out = y.view()});
  EXPECT_EQ(y.values(), (std::vector<float>{0.2f, 1.4f}));
}

TEST_P(Reference, LinearIsTheProductByHand) {
  const auto weights = backend->pack_linear(matrix_source(2, 3, {1, 2, 3, -1, 0, 1}, {10, 20}));
  const DeviceTensor x(*backend, GetParam(), {2, 3}, {1, 1, 1, 0, 2, 4});
  const DeviceTensor out = unwritten(*backend, GetParam(), {2, 2});
  backend->linear({.weights = weights.get(), .x = x.view(), .out = out.view()});
  EXPECT_EQ(out.values(), (std::vector<float>{16, 20, 26, 24}));
  const DeviceTensor sums(*backend, DType::kF32, {2, 2}, {1, 2, 3, 4});
  backend->linear(
      {.weights = weights.get(), .x = x.view(), .accumulate = true, .out = sums.view()});
  EXPECT_EQ(sums.values(), (std::vector<float>{17, 22, 29, 28}));
}

TEST_P(Reference, ActivationsHaveTheirKnownValues) {
  struct Case {
    Activation activation;
    std::vector<float> expected;  // of -1, 0, 1
  };
  // erf(1 / sqrt(2)) = 0.6826894921; tanh form and silu from their definitions.
  const Case cases[] = {{Activation::kNone, {-1, 0, 1}},
                        {Activation::kRelu, {0, 0, 1}},
                        {Activation::kGeluErf, {-0.15865525f, 0, 0.84134475f}},
                        {Activation::kGeluTanh, {-0.15880801f, 0, 0.84119199f}},
                        {Activation::kSilu, {-0.26894142f, 0, 0.73105858f}}};
  for (const Case& c : cases) {
    const DeviceTensor x(*backend, DType::kF32, {3, 2}, {-1, 1, 0, 1, 1, 1});
    const DeviceTensor out = unwritten(*backend, DType::kF32, {3, 1});
    backend->glu({.activation = c.activation, .gate_up = x.view(), .out = out.view()});
    EXPECT_CLOSE(out.values(), c.expected, 1e-8 + kF32Unit);
  }
}

TEST_P(Reference, RoundsItsResultsOnceToTheOutput) {
  // The same inputs give the same sums whatever the output holds.
  const AttendCase c{.n_tokens = 9, .head_dim = 16};
  const AttendInputs in(c, DType::kBF16);
  auto exact = attend(*backend, DType::kF32, c, in);
  for (float& x : exact) x = rounded(GetParam(), x);
  EXPECT_SAME_BITS(attend(*backend, GetParam(), c, in), exact);
}

INSTANTIATE_TEST_SUITE_P(All, Reference, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace sluice::impl::test
