// Attention on the caller's own numbers, against plain loops.

#include "sluice/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "unit/api/attention_inputs.h"
#include "unit/api/plan_files.h"

namespace sluice::test {
namespace {

std::vector<float> by_plain_loops(const AttentionInputs& inputs) {
  const auto& [shape, q, k, v] = inputs;
  std::vector<float> out(q.size());
  const int64_t d = shape.head_dim, group = shape.n_heads / shape.n_kv_heads;
  const double scale = shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(d));
  for (int64_t t = 0; t < shape.capacity; ++t)
    for (int64_t h = 0; h < shape.n_heads; ++h) {
      const auto at = [&](const std::vector<float>& rows, int64_t token, int64_t head,
                          int64_t n_heads, int64_t i) {
        return double{rows[static_cast<size_t>((token * n_heads + head) * d + i)]};
      };
      std::vector<double> weights, sums(static_cast<size_t>(d));
      double total = 0;
      for (int64_t s = 0; s <= t; ++s) {
        double score = 0;
        for (int64_t i = 0; i < d; ++i)
          score += at(q, t, h, shape.n_heads, i) * at(k, s, h / group, shape.n_kv_heads, i);
        weights.push_back(std::exp(scale * score));
        total += weights.back();
      }
      for (int64_t s = 0; s <= t; ++s)
        for (int64_t i = 0; i < d; ++i)
          sums[static_cast<size_t>(i)] +=
              weights[static_cast<size_t>(s)] / total * at(v, s, h / group, shape.n_kv_heads, i);
      for (int64_t i = 0; i < d; ++i)
        out[static_cast<size_t>((t * shape.n_heads + h) * d + i)] =
            static_cast<float>(sums[static_cast<size_t>(i)]);
    }
  return out;
}

TEST(ApiAttention, DenseIsThePlainLoops) {
  for (const float scale : {0.0f, 0.5f}) {
    AttentionShape shape = kSmall;
    shape.scale = scale;
    const AttentionInputs inputs(shape);
    const std::vector<float> expected = by_plain_loops(inputs);
    for (const Device device : {Device::kCpu, Device::kReference}) {
      Attention attention(shape, {}, device);
      expect_alike(inputs.all(attention), expected);
      EXPECT_EQ(attention.keys_read(), 1);
      EXPECT_EQ(attention.length(), shape.capacity);
    }
    Attention rounded(shape, {}, Device::kCpu, DType::kBF16);
    // Queries, keys, values, weights and the answer are rounded, each by 2^-9 of itself.
    EXPECT_LE(largest_difference(inputs.all(rounded), expected), 5 * 0x1p-9 * range_of(expected));
  }
}

TEST(ApiAttention, DeltaOfNothingIsDense) {
  const AttentionInputs inputs(kLong);
  Attention dense(kLong);
  const std::vector<float> expected = inputs.all(dense);
  for (const bool strict : {false, true}) {
    Attention attention(kLong, refine(0, strict));
    expect_alike(inputs.all(attention), expected);
    EXPECT_GT(attention.keys_read(), 1);  // all keys, and the means that nobody needed
  }
}

TEST(ApiAttention, FewTokensHaveNoClusters) {
  AttentionShape shape = kSmall;
  shape.capacity = 5;
  const AttentionInputs inputs(shape);
  Attention attention(shape, refine(kInf));
  expect_alike(inputs.all(attention), by_plain_loops(inputs));
  EXPECT_EQ(attention.keys_read(), 1);
  EXPECT_EQ(attention.keys_read_by_head(),
            std::vector<double>(static_cast<size_t>(shape.n_heads), 1));
}

TEST(ApiAttention, HigherDeltasReadLessAndMissMore) {
  const AttentionInputs inputs(kLong);
  Attention dense(kLong);
  const std::vector<float> expected = inputs.all(dense);
  double read = 2, missed = 0;
  for (const double delta : {0.0, 0.02, 0.05, kInf}) {
    Attention attention(kLong, refine(delta, /*strict=*/true));
    const std::vector<float> found = inputs.all(attention);
    EXPECT_LT(attention.keys_read(), read) << delta;
    const std::vector<double> by_head = attention.keys_read_by_head();
    ASSERT_EQ(std::ssize(by_head), kLong.n_heads);
    EXPECT_NEAR(std::accumulate(by_head.begin(), by_head.end(), 0.0),
                static_cast<double>(kLong.n_heads) * attention.keys_read(), 1e-12);
    EXPECT_GT(largest_difference(found, expected), missed) << delta;
    read = attention.keys_read();
    missed = largest_difference(found, expected);
  }
  EXPECT_LT(read, 0.7);
}

TEST(ApiAttention, TokenByTokenIsTheWhole) {
  const AttentionInputs inputs(kLong);
  // Means alone: no decision hangs on a last digit.
  for (const AttentionOptions& options : {AttentionOptions{}, refine(kInf, /*strict=*/true)}) {
    Attention whole(kLong, options), steps(kLong, options);
    const std::vector<float> expected = inputs.all(whole);
    std::vector<float> out(expected.size());
    inputs.append(steps, 300, out);
    while (steps.length() < kLong.capacity) inputs.append(steps, 1, out);
    expect_alike(out, expected);
    EXPECT_DOUBLE_EQ(steps.keys_read(), whole.keys_read());
    steps.clear();
    EXPECT_EQ(steps.length(), 0);
    EXPECT_EQ(inputs.all(steps), expected);
  }
}

TEST(ApiAttention, ALayerOfAPlanHasItsHeads) {
  const ModelFolder gpt2("gpt2");
  const TempDir dir;
  impl::PlanFile file = plan_file_for(gpt2.path(), impl::AttentionMode::kDense, 32);
  file.model.n_kv_heads = kLong.n_kv_heads;
  impl::LayerPlan& layer = file.plan.attention.layers.back();
  impl::UniformAttention choice;
  choice.mode = impl::AttentionMode::kRefine;
  choice.delta = kInf;
  layer = impl::layer_plan(
      choice,
      {.n_layers = 1, .n_kv_heads = kLong.n_kv_heads, .causal = true, .context = kLong.capacity});
  layer.heads.back() = {.kind = impl::HeadKind::kDense};
  const int64_t last = std::ssize(file.plan.attention.layers) - 1;
  impl::write_plan_file(file, dir.path() / "plan.json");
  const Plan plan = Plan::load(dir.path() / "plan.json");

  const AttentionInputs inputs(kLong);
  Attention dense(kLong), uniform(kLong, refine(kInf)), first(kLong, plan, 0),
      mixed(kLong, plan, last);
  const std::vector<float> exact = inputs.all(dense), means = inputs.all(uniform),
                           found = inputs.all(mixed);
  EXPECT_TRUE(first.is_dense());
  EXPECT_EQ(inputs.all(first), exact);
  EXPECT_FALSE(mixed.is_dense());
  // The first key head clusters, the second is read whole.
  const auto d = static_cast<size_t>(kLong.head_dim);
  std::vector<float> expected = exact;
  for (size_t i = 0; i < expected.size(); ++i)
    if (i / d % 4 < 2) expected[i] = means[i];
  expect_alike(found, expected);
  const std::vector<double> read = mixed.keys_read_by_head(), alike = uniform.keys_read_by_head();
  EXPECT_DOUBLE_EQ(read[0], alike[0]);
  EXPECT_DOUBLE_EQ(read[1], alike[1]);
  EXPECT_DOUBLE_EQ(read[2], 1);
  EXPECT_DOUBLE_EQ(read[3], 1);

  const Plan later =
      Plan::uniform({.mode = AttentionMode::kRefine, .delta = kInf, .from_layer = 2});
  EXPECT_TRUE(Attention(kLong, later, 1).is_dense());
  Attention of_uniform(kLong, later, 2);
  EXPECT_EQ(inputs.all(of_uniform), means);
  EXPECT_TRUE(Attention(kLong, Plan(), 7).is_dense());

  expect_error([&] { Attention attention(kLong, plan, last + 1); }, {"layers, and no layer"});
  expect_error([&] { Attention attention(kLong, plan, -1); }, {"no layer -1"});
  expect_error(
      [&] { Attention attention(kSmall, Plan::uniform({.mode = AttentionMode::kKeys}), 0); },
      {"densely or refined"});
  AttentionShape other = kLong;
  other.n_kv_heads = 4;
  expect_error([&] { Attention attention(other, plan, last); }, {"heads"});
}

TEST(ApiAttention, RefusesWhatDoesNotFit) {
  const auto refused = [](const AttentionShape& shape) {
    expect_error([&] { Attention attention(shape); }, {});
  };
  refused({});
  refused({.n_heads = 6, .n_kv_heads = 4, .head_dim = 8, .capacity = 8});
  refused({.n_heads = 6, .n_kv_heads = 6, .head_dim = -8, .capacity = 8});
  refused({.n_heads = 1 << 20, .n_kv_heads = 1, .head_dim = 1 << 20, .capacity = 1 << 20});
  refused({.n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .capacity = 8, .scale = -1});
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy})
    expect_error([&] { Attention attention(kSmall, {.mode = mode}); }, {"densely or refined"});
  expect_error([&] { Attention attention(kSmall, refine(-1)); }, {"delta"});

  Attention attention({.n_heads = 2, .n_kv_heads = 1, .head_dim = 4, .capacity = 2});
  std::vector<float> q(8), k(4), out(8);
  expect_error([&] { attention.append({}, {}, {}, {}); }, {"0"});
  expect_error([&] { attention.append(q, q, q, out); }, {"8"});
  expect_error([&] { attention.append(std::span(q).first(7), k, k, out); }, {"7"});
  expect_error([&] { attention.append(q, k, k, std::span(out).first(4)); }, {"4"});
  attention.append(q, k, k, out);
  attention.append(q, k, k, out);
  expect_error([&] { attention.append(q, k, k, out); }, {"capacity of 2"});
  EXPECT_EQ(attention.length(), 2);
}

}  // namespace
}  // namespace sluice::test
