// What an accelerated layer keeps: heads that do different things, sets taken over from the layer
// before, and what it all weighs.

#include "layer/layer_attention.h"

#include <gtest/gtest.h>

#include "parity/backends.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kAttended = 150, kAttendedWidth = 32, kHeadDim = 16, kGroup = 2;

// Rows around a few directions, near enough that some merge at 0.5 and more at 0.8.
std::vector<float> scattered_rows() {
  constexpr int64_t kDirections = 9;
  const auto directions = random_values(kDirections * kAttendedWidth, 1);
  auto rows = random_values(kAttended * kAttendedWidth, 2, DType::kF32, 0.8f);
  for (int64_t t = 0; t < kAttended; ++t)
    for (int64_t i = 0; i < kAttendedWidth; ++i)
      rows[static_cast<size_t>(t * kAttendedWidth + i)] +=
          directions[static_cast<size_t>(t * t % kDirections * kAttendedWidth + i)];
  return rows;
}

LayerPlan plan_of(AttentionMode mode, std::vector<HeadPlan> heads) {
  LayerPlan plan;
  plan.mode = mode;
  plan.sinks = 2;
  plan.window = plan.block = 16;
  plan.heads = std::move(heads);
  return plan;
}

AttentionShape shape_of(const LayerPlan& plan) {
  const auto n_kv_heads = static_cast<int64_t>(plan.heads.size());
  return {.d_model = kAttendedWidth,
          .n_heads = n_kv_heads * kGroup,
          .n_kv_heads = n_kv_heads,
          .head_dim = kHeadDim,
          .causal = true,
          .scale = 0.25f};
}

class LayerAttentionOf : public testing::TestWithParam<Setup> {
 protected:
  LayerAttention make(const LayerPlan& plan, LayerAttention* above = nullptr) {
    return {*backend, plan, shape_of(plan), 1, kAttended, above};
  }

  // What a layer of such heads answers, (kAttended, n_heads, head_dim): most tokens in one pass,
  // then one by one as in decoding.
  std::vector<float> attend(const std::vector<HeadPlan>& heads) {
    const LayerPlan plan = plan_of(AttentionMode::kKeys, heads);
    const int64_t n_kv_heads = shape_of(plan).n_kv_heads, n_heads = shape_of(plan).n_heads;
    const auto input = [&](int64_t n, uint32_t seed) {
      return DeviceTensor(*backend, dtype(), {kAttended, n, kHeadDim},
                          random_values(kAttended * n * kHeadDim, seed, dtype()));
    };
    const DeviceTensor queries = input(n_heads, 3), keys = input(n_kv_heads, 4),
                       values = input(n_kv_heads, 5);
    const DeviceTensor out = unwritten(*backend, dtype(), {kAttended, n_heads, kHeadDim});
    LayerAttention layer = make(plan);
    for (int64_t first = 0, n = 130; first < kAttended; first += n, n = 1) {
      layer.select(0, {rows.view().rows_from(first, n), rows.view().rows_from(first, n)});
      layer.keys(0).attend({.queries = queries.view().rows_from(first, n),
                            .keys = keys.view().rows_from(first, n),
                            .values = values.view().rows_from(first, n),
                            .sets = layer.sets(0),
                            .out = out.view().rows_from(first, n)});
    }
    return out.values();
  }

  DType dtype() const { return GetParam().dtype; }
  const std::unique_ptr<Backend> backend = GetParam().backend();
  const DeviceTensor rows{*backend, DType::kF32, {kAttended, kAttendedWidth}, scattered_rows()};
};

// Of all tokens, the outputs of the query heads that share a key/value head.
std::vector<float> head_of(const std::vector<float>& out, size_t head) {
  const size_t width = kGroup * kHeadDim, row = out.size() / kAttended;
  std::vector<float> columns;
  for (size_t at = head * width; at < out.size(); at += row)
    columns.insert(columns.end(), out.begin() + static_cast<std::ptrdiff_t>(at),
                   out.begin() + static_cast<std::ptrdiff_t>(at + width));
  return columns;
}

TEST_P(LayerAttentionOf, AHeadAnswersAsIfAllHeadsDidTheSame) {
  const std::vector<HeadPlan> heads = {{HeadKind::kClusters, 0.5, FarKey::kCentroid},
                                       {HeadKind::kClusters, 0.8, FarKey::kCentroid},
                                       {HeadKind::kDense},
                                       {HeadKind::kClusters, 0.8, FarKey::kValues},
                                       {HeadKind::kWindow},
                                       {HeadKind::kClusters, 0.8, FarKey::kOwn},
                                       {HeadKind::kClusters, 0, FarKey::kCentroid}};
  const auto mixed = attend(heads);
  std::vector<std::vector<float>> uniform;
  for (const HeadPlan& head : heads)
    uniform.push_back(attend(std::vector<HeadPlan>(heads.size(), head)));
  for (size_t head = 0; head < heads.size(); ++head) {
    SCOPED_TRACE(head);
    EXPECT_SAME_BITS(head_of(mixed, head), head_of(uniform[head], head));
    // The other heads' choices would show.
    const size_t next = (head + 1) % heads.size();
    EXPECT_NE(head_of(mixed, head), head_of(uniform[next], head));
  }
}

TEST_P(LayerAttentionOf, ReusedSetsAreThoseOfTheLayerBefore) {
  LayerAttention above =
      make(plan_of(AttentionMode::kKeys, {{HeadKind::kClusters, 0.8}, {HeadKind::kClusters, 0.5}}));
  LayerPlan plan =
      plan_of(AttentionMode::kCopy, {{HeadKind::kClusters, 0.8}, {HeadKind::kClusters, 0.8}});
  plan.reuse = true;
  LayerAttention reusing = make(plan, &above);
  above.select(0, {rows.view(), rows.view()});
  reusing.select(0, {rows.view(), rows.view()});
  EXPECT_EQ(reusing.sets(0).data(), above.sets(0).data());
  ASSERT_EQ(above.sets(0).size(), 2u);
  EXPECT_NE(above.sets(0)[0].cluster, above.sets(0)[1].cluster);
  EXPECT_EQ(reusing.only_set(0).tau, 0.8);
  EXPECT_EQ(reusing.bytes().selection_rows, 0);
  EXPECT_GT(above.bytes().selection_rows, 0);
}

// Blocks and windows are of 16 tokens.
TEST_P(LayerAttentionOf, SquaresAreReadWhereTokensAreDecidedAtOnce) {
  LayerAttention keys = make(plan_of(AttentionMode::kKeys, {{HeadKind::kClusters, 0.8}}));
  LayerAttention copy = make(plan_of(AttentionMode::kCopy, {{HeadKind::kClusters, 0.8}}), &keys);
  LayerPlan plan = copy.plan();
  plan.reuse = true;
  const LayerAttention reusing = make(plan, &copy);
  const auto select = [&](int64_t first, int64_t n) {
    for (LayerAttention* layer : {&keys, &copy})
      layer->select(0, {rows.view().rows_from(first, n), rows.view().rows_from(first, n)});
  };
  EXPECT_TRUE(keys.reads_squares(16));
  EXPECT_FALSE(keys.reads_squares(15));
  EXPECT_TRUE(copy.reads_squares(2));
  EXPECT_FALSE(copy.reads_squares(1));
  EXPECT_FALSE(reusing.reads_squares(130));
  select(0, 16);
  keys.select(0, {rows.view().rows_from(16, 3), rows.view().rows_from(16, 3)});
  EXPECT_FALSE(keys.reads_squares(100));  // others wait
  EXPECT_TRUE(copy.reads_squares(100));
}

TEST_P(LayerAttentionOf, ReuseOfATauThatNobodyChoseIsABrokenPromise) {
  LayerAttention above = make(plan_of(AttentionMode::kKeys, {{HeadKind::kClusters, 0.8}}));
  LayerPlan plan = plan_of(AttentionMode::kKeys, {{HeadKind::kClusters, 0.7}});
  plan.reuse = true;
  EXPECT_THROW(make(plan, &above), InternalError);
}

TEST_P(LayerAttentionOf, OutputsThatAreKeptAreWeighed) {
  LayerAttention layer = make(plan_of(AttentionMode::kCopy, {{HeadKind::kClusters, 0.8}}));
  EXPECT_EQ(layer.bytes().total(), 0);
  layer.add_outputs(0, 3);
  layer.add_outputs(0, 2);
  EXPECT_EQ(layer.bytes().outputs, 5 * kAttendedWidth * 4);
  EXPECT_EQ(layer.bytes().total(), layer.bytes().outputs);
  layer.reset();
  EXPECT_EQ(layer.bytes().total(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, LayerAttentionOf,
                         testing::Values(Setup{"reference", DType::kF32, make_reference_backend},
                                         Setup{"reference", DType::kBF16, make_reference_backend},
                                         Setup{"cpu", DType::kF32, make_cpu_backend},
                                         Setup{"cpu", DType::kBF16, make_cpu_backend}),
                         [](const auto& test) {
                           return std::string(test.param.name) + "_" +
                                  std::string(dtype_name(test.param.dtype));
                         });

}  // namespace
}  // namespace sluice::impl::test
