// The normaliser that refined attention decides by, against the true one, on keys with a bias.
// docs/algorithm.md, section 7.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "backend/reference/attention/refine/clusters.h"
#include "parity/refine_case.h"

namespace sluice::impl::test {
namespace {

using reference::refine::cluster_keys;
using reference::refine::Group;
using reference::refine::mean_of;
using reference::refine::variances_of;
using Row = std::vector<double>;

double log_sum(const std::vector<double>& exponents) {
  const double largest = *std::max_element(exponents.begin(), exponents.end());
  double sum = 0;
  for (const double x : exponents) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

// Logs of the normaliser of one query over the clusters of all keys.
struct Normalisers {
  double truth;   // of the keys themselves
  double groups;  // RefineEstimate::log_mass
  double scalar;  // second order in one spread for all dimensions, unbounded
};

class NormaliserTest : public testing::Test {
 protected:
  static constexpr int64_t kPage = 16;

  explicit NormaliserTest(float bias = 0) : c{.n_tokens = 512, .head_dim = 64, .bias = bias} {
    const RefineInputs in(c, DType::kF32);
    const auto rows = [&](const std::vector<float>& from, int64_t n_heads, double scale) {
      std::vector<Row> found;
      for (int64_t t = 0; t < c.n_tokens; ++t) {
        const auto begin = from.begin() + t * n_heads * c.head_dim;
        Row& row = found.emplace_back(begin, begin + c.head_dim);
        for (double& x : row) x *= scale;
      }
      return found;
    };
    keys = rows(in.keys, c.n_kv_heads, 1);
    queries = rows(in.queries, c.n_heads, double{c.scale()});
    groups = cluster_keys(keys, kPage);
    dims = group_dims(variances_of(keys));
  }

  Normalisers normalisers(const Row& query) const {
    const RefineEstimate estimate(kPage);
    std::vector<double> truth, by_groups, scalar;
    for (const Row& key : keys)
      truth.push_back(std::inner_product(query.begin(), query.end(), key.begin(), 0.0));
    for (const Group& group : groups) {
      const Row mean = mean_of(keys, group);
      Row squares(mean.size());  // mean squared deviations, by dimension
      for (const size_t i : group)
        for (size_t d = 0; d < mean.size(); ++d)
          squares[d] += (keys[i][d] - mean[d]) * (keys[i][d] - mean[d]) / kPage;
      double variance = 0;
      for (int g = 0; g < kSpreadGroups; ++g) {
        double spread = 0, query2 = 0;
        dims.each(g, [&](int32_t dim) {
          const auto d = static_cast<size_t>(dim);
          spread += squares[d] / dims.size(g);
          query2 += query[d] * query[d];
        });
        variance += spread * query2;
      }
      const double score = std::inner_product(query.begin(), query.end(), mean.begin(), 0.0);
      by_groups.push_back(double{
          estimate.log_mass(static_cast<float>(score), static_cast<float>(std::sqrt(variance)))});
      const double norm2 = std::inner_product(query.begin(), query.end(), query.begin(), 0.0);
      const double all = std::accumulate(squares.begin(), squares.end(), 0.0);
      scalar.push_back(score + std::log(double{kPage}) +
                       norm2 * all / static_cast<double>(c.head_dim) / 2);
    }
    return {log_sum(truth), log_sum(by_groups), log_sum(scalar)};
  }
  // The largest amount by which an estimate exceeds the truth over all queries.
  double excess_of(double Normalisers::*estimate) const {
    double most = -INFINITY;
    for (const Row& query : queries) {
      const Normalisers z = normalisers(query);
      most = std::max(most, z.*estimate - z.truth);
    }
    return most;
  }

  const RefineCase c;
  std::vector<Row> keys, queries;
  std::vector<Group> groups;
  DimGroups dims;
};

class KeysWithBias : public NormaliserTest {
 protected:
  KeysWithBias() : NormaliserTest(60) {}
};

// What is stated: never more than half a nat too large. It may be too small by more: a page has
// neighbours on both sides of its mean, which is no normal distribution.
TEST_F(NormaliserTest, IsNearTheTruth) {
  EXPECT_LT(excess_of(&Normalisers::groups), 0.5);
  for (const Row& query : queries) {
    const Normalisers z = normalisers(query);
    EXPECT_GT(z.groups, z.truth - 1);
  }
}

// One spread for all dimensions charges a query for a bias that it does not look at.
TEST_F(KeysWithBias, DoesNotInflateTheNormaliser) {
  EXPECT_LT(excess_of(&Normalisers::groups), 0.5);
  EXPECT_GT(excess_of(&Normalisers::scalar), 10);
}

// Every cut of the ordered dimensions costs at least as much.
TEST(DimGroups, AreTheCutOfLeastSquaredDeviations) {
  const std::vector<double> variances = {3, 0.1, 900, 3.1, 0.12, 850, 40, 0.09, 3.2, 0, 2000, 35};
  const DimGroups found = group_dims(variances);
  const auto cost_of = [&](const std::vector<int32_t>& begins) {
    double cost = 0;
    for (size_t g = 0; g + 1 < begins.size(); ++g) {
      std::vector<double> logs;
      for (int32_t i = begins[g]; i < begins[g + 1]; ++i) {
        const auto d = static_cast<size_t>(found.dims[static_cast<size_t>(i)]);
        logs.push_back(std::log(std::max(variances[d], 2000 * kLeastVariance)));
      }
      const double mean =
          std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size());
      for (const double x : logs) cost += (x - mean) * (x - mean);
    }
    return cost;
  };
  const double least = cost_of({found.begins.begin(), found.begins.end()});
  const auto n = static_cast<int32_t>(variances.size());
  std::vector<bool> cut_here(static_cast<size_t>(n - 1));
  std::fill_n(cut_here.begin(), kSpreadGroups - 1, true);
  do {
    std::vector<int32_t> begins{0};
    for (int32_t i = 1; i < n; ++i)
      if (cut_here[static_cast<size_t>(i - 1)]) begins.push_back(i);
    begins.push_back(n);
    EXPECT_GE(cost_of(begins), least - 1e-9);
  } while (std::prev_permutation(cut_here.begin(), cut_here.end()));
  EXPECT_EQ(found.begins.front(), 0);
  EXPECT_EQ(found.begins.back(), n);
}

TEST(DimGroups, FewDimensionsHaveAGroupEachAndTheRestAreEmpty) {
  const DimGroups found = group_dims({5, std::nan(""), 5});
  EXPECT_EQ(found.dims, (std::vector<int32_t>{1, 0, 2}));
  for (int g = 0; g < kSpreadGroups; ++g) EXPECT_EQ(found.size(g), g < 3 ? 1 : 0) << g;
}

TEST(RefineEstimate, ExcessIsThatOfTheNormalDistributionUpToTheLargestOfThePage) {
  const RefineEstimate estimate(16);
  EXPECT_EQ(estimate.excess(0), 0);
  EXPECT_FLOAT_EQ(estimate.excess(1), 0.5f);
  const float edge = estimate.linear_from();
  EXPECT_NEAR(estimate.excess(std::nextafter(edge, 0.0f)), estimate.excess(edge), 1e-5f);
  // The mean of 16 numbers is at most their largest, which is about sigma * sqrt(2 ln 16).
  for (const float sigma : {3.0f, 10.0f, 1000.0f}) EXPECT_LT(estimate.excess(sigma), sigma * edge);
}

// A cluster of one token is what its mean says.
TEST(RefineEstimate, OneTokenHasNoError) {
  const RefineEstimate estimate(1);
  EXPECT_EQ(estimate.log_mass(2, 0), 2);
  EXPECT_EQ(estimate.error(0, 0), 0);
}

}  // namespace
}  // namespace sluice::impl::test
