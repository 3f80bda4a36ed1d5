// Plans of linear layers: defaults, names, and what is refused.

#include "plan/linear_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "plan/plan_json.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

const LinearShape kShape{.n_layers = 2, .widths = {.d_model = 8, .attention = 6, .inner = 32}};

Bases bases_of(int64_t rank, bool parallel = false) {
  Bases bases;
  for (int64_t layer = 0; layer < 2; ++layer)
    for (const BasisInput input : kLinearInputs)
      if (!parallel || input != BasisInput::kMlpInput)
        bases.list.push_back({.layer = layer,
                              .input = input,
                              .d = kShape.widths.of(input),
                              .rank = rank,
                              .vectors = {},
                              .spectrum = {}});
  return bases;
}

UniformLinear gsi(int64_t rank, double epsilon = 0.1) {
  return {.kind = LinearKind::kGsi, .rank = rank, .epsilon = epsilon};
}

TEST(LinearPlan, NamesAreReadBack) {
  for (const LinearKind kind : {LinearKind::kDense, LinearKind::kGsi, LinearKind::kGraded})
    EXPECT_EQ(linear_of(linear_name(kind)), kind);
  EXPECT_EQ(linear_of("sparse"), std::nullopt);
}

TEST(LinearPlan, OneChoiceIsForAllLayersAndInputs) {
  EXPECT_TRUE(uniform_linear_plan({}, kShape).all_dense());
  const LinearPlan plan = uniform_linear_plan(gsi(4, 0.2), kShape);
  ASSERT_EQ(plan.layers.size(), 2u);
  for (const LayerLinearPlan& layer : plan.layers)
    for (const GroupPlan& group : layer.groups) {
      EXPECT_EQ(group.kind, LinearKind::kGsi);
      EXPECT_EQ(group.rank, 4);
      EXPECT_EQ(group.epsilon, 0.2);
    }
  EXPECT_FALSE(plan.all_dense());
}

TEST(LinearPlan, GradedWithoutLossIsForExactZeros) {
  const UniformLinear lossless{.kind = LinearKind::kGraded, .epsilon = 0};
  LinearShape relu = kShape;
  relu.relu = true;
  const LinearPlan plan = uniform_linear_plan(lossless, relu);
  for (const BasisInput input : kLinearInputs)
    EXPECT_EQ(plan.layers[1].of(input).kind,
              input == BasisInput::kMlpInner ? LinearKind::kGraded : LinearKind::kDense);
  expect_error([&] { uniform_linear_plan(lossless, kShape); }, {"exact zeros", "none"});
}

TEST(LinearPlan, WhatHasNoMeaningIsRefused) {
  expect_error([&] { uniform_linear_plan(gsi(0), kShape); }, {"rank 0", "attention_input"});
  expect_error([&] { uniform_linear_plan(gsi(7), kShape); }, {"rank 7", "attention_output", "6"});
  for (const double epsilon : {-0.1, 1.5, std::nan("")})
    expect_error([&] { uniform_linear_plan(gsi(4, epsilon), kShape); }, {"epsilon", "0 … 1"});
  UniformLinear adaptive = gsi(4);
  adaptive.adaptive = 3;
  expect_error([&] { uniform_linear_plan(adaptive, kShape); }, {"attention_output", "rows of 6"});
}

TEST(LinearPlan, BasesMustBeThereAndWideEnough) {
  const LinearPlan plan = uniform_linear_plan(gsi(4), kShape);
  const Bases good = bases_of(4), narrow = bases_of(3), parallel = bases_of(4, true);
  EXPECT_NO_THROW(check_linear_plan(plan, kShape, &good));
  EXPECT_NO_THROW(check_linear_plan({}, kShape, nullptr));
  expect_error([&] { check_linear_plan(plan, kShape, nullptr); },
               {"layer 0, attention_input", "no basis"});
  expect_error([&] { check_linear_plan(plan, kShape, &narrow); }, {"rank 4", "has 3"});
  expect_error([&] { check_linear_plan(plan, kShape, &parallel); },
               {"layer 0, mlp_input", "no basis"});
  LinearShape shape = kShape;
  shape.parallel = true;
  EXPECT_NO_THROW(check_linear_plan(plan, shape, &parallel));
  shape.n_layers = 3;
  expect_error([&] { check_linear_plan(plan, shape, &good); }, {"2 layers", "3"});
}

TEST(LinearPlan, ItsJsonHasEveryGroupThatIsNotDense) {
  LinearPlan plan = uniform_linear_plan(gsi(4), kShape);
  plan.layers[0] = {};
  plan.layers[1].of(BasisInput::kMlpInner) = {.kind = LinearKind::kGraded, .epsilon = 0.5};
  const nlohmann::json groups = describe_linear_plan(plan);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0], nlohmann::json({{"layer", 1},
                                       {"input", "attention_input"},
                                       {"linear", "gsi"},
                                       {"rank", 4},
                                       {"epsilon", 0.1},
                                       {"adaptive", 0}}));
  EXPECT_EQ(groups[3],
            nlohmann::json(
                {{"layer", 1}, {"input", "mlp_inner"}, {"linear", "graded"}, {"epsilon", 0.5}}));
}

}  // namespace
}  // namespace sluice::impl::test
