#include "eval/compare/refine_reads.h"

#include <gtest/gtest.h>

namespace sluice::impl::test {
namespace {

LayerPlan plan_of(HeadKind kind) {
  LayerPlan plan;
  plan.mode = AttentionMode::kRefine;
  plan.sinks = 3;
  plan.window = 0;
  plan.refine.segment = 8;
  plan.refine.page = 4;
  plan.heads = {{.kind = kind}};
  return plan;
}

// The query at 9 sees the tokens 8 and 9, a page of sinks, and one cluster of the tokens 4 to 7.
TEST(RefineKeys, AreNearKeysSinksAndClusters) {
  const RefineKeys keys = refine_keys(plan_of(HeadKind::kClusters), HeadKind::kClusters, 9, 1);
  EXPECT_EQ(keys.near, 2 + 4);
  EXPECT_EQ(keys.clusters, 1);
  EXPECT_EQ(keys.dense, 10);
  EXPECT_EQ(refine_keys(plan_of(HeadKind::kWindow), HeadKind::kWindow, 9, 1).clusters, 0);
  EXPECT_EQ(refine_keys(plan_of(HeadKind::kClusters), HeadKind::kClusters, 7, 1).near, 8);
}

// Of 22 tokens 16 are in whole segments, less a page of sinks: three clusters for every query.
TEST(RefineKeys, OfAnEncoderAreAllWholeSegmentsAndTheRest) {
  const RefineKeys keys =
      refine_encoder_keys(plan_of(HeadKind::kClusters), HeadKind::kClusters, 22, 5);
  EXPECT_EQ(keys.near, 5 * (6 + 4));
  EXPECT_EQ(keys.clusters, 5 * 3);
  EXPECT_EQ(keys.dense, 5 * 22);
  EXPECT_EQ(refine_encoder_keys(plan_of(HeadKind::kClusters), HeadKind::kClusters, 7, 1).near, 7);
}

TEST(RefineReads, AddUpToWhatAWindowReads) {
  RefineReads reads;
  EXPECT_TRUE(reads.empty());
  // Two query heads of one key head; 12 tokens are one segment and a half.
  const std::vector<int64_t> opened = {0, 0, 4, 12};
  reads.add(plan_of(HeadKind::kClusters), {2, 12}, opened);
  reads.add(plan_of(HeadKind::kClusters), {2, 12}, opened);
  const double dense = 78;  // 1 + 2 + … + 12
  EXPECT_DOUBLE_EQ(reads.dense_keys(), 2 * 2 * dense);
  // Eight queries see all before them, four see one to four tokens and four sinks, and a cluster.
  EXPECT_DOUBLE_EQ(reads.near_fraction(), (36 + 10 + 16) / dense);
  EXPECT_DOUBLE_EQ(reads.clusters_fraction(), 4 / dense);
  EXPECT_DOUBLE_EQ(reads.opened_fraction(), 16 / (2 * dense));
  EXPECT_DOUBLE_EQ(reads.keys(), 2 * 2 * (36 + 10 + 16 + 4) + 2 * 16);
  EXPECT_EQ(reads.opened_by_head(), (std::vector<double>{4 / dense, 12 / dense}));
  const auto positions = reads.by_position();
  ASSERT_EQ(positions.size(), 2u);
  EXPECT_EQ(positions[1].begin, 8);
  EXPECT_DOUBLE_EQ(positions[0].near, 1);
  EXPECT_DOUBLE_EQ(positions[1].opened, 16 / (2 * (dense - 36)));
}

}  // namespace
}  // namespace sluice::impl::test
