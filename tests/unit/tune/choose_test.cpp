// The search against all plans there are, on tables small enough to try every one.

#include "tune/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <set>

namespace sluice::impl::test {
namespace {

constexpr int64_t kLayers = 2, kHeads = 2;

PlanShape shape() {
  return {.n_layers = kLayers, .n_kv_heads = kHeads, .causal = true, .windows = {}, .context = 512};
}

HeadTable random_table(uint32_t seed, AttentionMode mode = AttentionMode::kKeys) {
  std::mt19937 random(seed);
  const auto number = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  HeadTable table;
  table.options.mode = mode;
  table.options.windows = {128, 32};
  table.options.taus = {0.3, 0.5};
  table.options.deltas = {0.01, 0.1, std::numeric_limits<double>::infinity()};
  table.n_layers = kLayers;
  table.n_heads = kHeads;
  const auto n_costs = static_cast<size_t>(table.options.n_costs());
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    LayerCosts costs{.dense_head = number(0.5, 1), .exact_head = {}, .head = {}, .select = {}};
    for (size_t window = 0; window < 2; ++window) {
      costs.exact_head.push_back(costs.dense_head + number(0, 0.2));
      costs.head.emplace_back();
      costs.select.emplace_back();
      for (size_t i = 0; i < n_costs; ++i) {
        costs.head.back().push_back(number(0.1, 0.9));
        costs.select.back().push_back(number(0.1, 0.5));
      }
      costs.select.back().back() = number(0, 0.1);  // a window's exempt tokens cost less than a set
      if (table.options.refines()) costs.select.back().assign(n_costs, 0);
    }
    table.costs.push_back(costs);
  }
  for (int64_t i = 0; i < kLayers * kHeads * 2 * table.options.n_choices(); ++i)
    table.kl.push_back(number(0, 0.01));
  return table;
}

// What a layer costs when its heads do this; -1 is dense.
double layer_cost(const HeadTable& table, size_t layer, size_t window,
                  const std::vector<int64_t>& heads) {
  const LayerCosts& costs = table.costs[layer];
  if (std::all_of(heads.begin(), heads.end(), [](int64_t choice) { return choice < 0; }))
    return costs.dense_head * static_cast<double>(heads.size());
  double cost = 0;
  std::set<size_t> sets;
  bool window_only = false;
  for (const int64_t choice : heads) {
    if (choice < 0) {
      cost += costs.exact_head[window];
      continue;
    }
    const HeadPlan head = table.options.choice(choice);
    const auto& known = table.options.thresholds();
    const double threshold = table.options.refines() ? head.delta : head.tau;
    const auto at =
        head.kind == HeadKind::kWindow
            ? known.size()
            : static_cast<size_t>(std::find(known.begin(), known.end(), threshold) - known.begin());
    cost += costs.head[window][at];
    if (head.kind == HeadKind::kClusters)
      sets.insert(at);
    else
      window_only = true;
  }
  for (const size_t set : sets) cost += costs.select[window][set];
  if (sets.empty() && window_only) cost += costs.select[window].back();
  return cost;
}

// Every plan of the table: its KL and cost.
void for_every_plan(const HeadTable& table, const std::function<void(double, double)>& use) {
  const int64_t n = table.options.n_choices() + 1;
  const int64_t per_layer = n * n * 2;
  std::vector<std::pair<double, double>> layers[kLayers];
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (int64_t code = 0; code < per_layer; ++code) {
      const auto window = static_cast<size_t>(code % 2);
      const std::vector<int64_t> heads = {code / 2 % n - 1, code / 2 / n - 1};
      double kl = 0;
      for (int64_t head = 0; head < kHeads; ++head)
        if (const int64_t choice = heads[static_cast<size_t>(head)]; choice >= 0)
          kl += table.kl[table.at({layer, head, window, choice})];
      layers[layer].emplace_back(kl, layer_cost(table, static_cast<size_t>(layer), window, heads));
    }
  for (const auto& [kl_a, cost_a] : layers[0])
    for (const auto& [kl_b, cost_b] : layers[1]) use(kl_a + kl_b, cost_a + cost_b);
}

// Every layer finding what it needs by itself, as they are chosen.
double cost_alone(const HeadTable& table, const Chosen& chosen) {
  AttentionPlan plan = chosen.plan.attention;
  for (LayerPlan& layer : plan.layers) layer.reuse = false;
  return table.cost_of(plan);
}

TEST(Choose, AtAPriceNoPlanIsBetter) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const HeadTable table =
        random_table(seed, seed % 2 == 0 ? AttentionMode::kKeys : AttentionMode::kRefine);
    for (const double price : {0.0, 10.0, 100.0, 1000.0}) {
      const Chosen chosen = choose_at(table, {}, shape(), price);
      double best = std::numeric_limits<double>::infinity();
      for_every_plan(table,
                     [&](double kl, double cost) { best = std::min(best, cost + price * kl); });
      EXPECT_NEAR(cost_alone(table, chosen) + price * chosen.kl, best, 1e-12)
          << seed << " " << price;
    }
  }
}

TEST(Choose, WithinABudgetAndNotBeatenByMuch) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const HeadTable table = random_table(seed);
    double last = std::numeric_limits<double>::infinity();
    for (const double budget : {0.0, 0.001, 0.005, 0.01, 0.02, 1.0}) {
      const Chosen chosen = choose(table, {}, shape(), budget);
      EXPECT_LE(chosen.kl, budget);
      const double cost_chosen = cost_alone(table, chosen);
      EXPECT_LE(cost_chosen, last + 1e-12) << "a larger budget costs no more";
      last = cost_chosen;
      // No plan of its KL or less costs less: it lies on the hull.
      for_every_plan(table, [&](double kl, double cost) {
        if (kl <= chosen.kl) {
          EXPECT_GE(cost, cost_chosen - 1e-12);
        }
      });
    }
  }
}

TEST(Choose, PlansSayWhatWasChosen) {
  HeadTable table = random_table(3);
  std::fill(table.kl.begin(), table.kl.end(), 1.0);
  for (LayerCosts& costs : table.costs)
    for (auto* rows : {&costs.head, &costs.select})
      for (std::vector<double>& row : *rows) std::fill(row.begin(), row.end(), 0.01);
  table.kl[table.at({1, 0, 1, 1})] = 1e-4;  // layer 1, head 0, the second window, tau 0.5
  const Chosen chosen = choose(table, {}, shape(), 1e-3);
  EXPECT_EQ(chosen.kl, 1e-4);
  EXPECT_EQ(chosen.plan.attention.layers[0].mode, AttentionMode::kDense);
  const LayerPlan& layer = chosen.plan.attention.layers[1];
  EXPECT_EQ(layer.mode, AttentionMode::kKeys);
  EXPECT_EQ(layer.window, 32);
  EXPECT_EQ(layer.block, 32);
  EXPECT_EQ(layer.heads[0].kind, HeadKind::kClusters);
  EXPECT_EQ(layer.heads[0].tau, 0.5);
  EXPECT_EQ(layer.heads[1].kind, HeadKind::kDense);
  EXPECT_NO_THROW(check_plan(chosen.plan.attention, shape()));
}

TEST(Choose, RefinedHeadsOfALayerMayAllDiffer) {
  HeadTable table = random_table(3, AttentionMode::kRefine);
  table.n_heads = 4;
  table.kl.assign(static_cast<size_t>(kLayers * table.n_heads * 2 * table.options.n_choices()), 1);
  for (LayerCosts& costs : table.costs)
    for (std::vector<double>& row : costs.head) std::fill(row.begin(), row.end(), 0.01);
  for (int64_t head = 0; head < 4; ++head) table.kl[table.at({1, head, 1, head})] = 0;
  PlanShape wide = shape();
  wide.n_kv_heads = 4;
  const Chosen chosen = choose(table, {}, wide, 0);
  const LayerPlan& layer = chosen.plan.attention.layers[1];
  EXPECT_EQ(layer.mode, AttentionMode::kRefine);
  EXPECT_EQ(layer.window, 32);
  EXPECT_EQ(layer.refine.tile, 32);  // no longer than the window
  for (int64_t head = 0; head < 4; ++head)
    EXPECT_EQ(layer.heads[static_cast<size_t>(head)], table.options.choice(head));
  EXPECT_EQ(layer.heads[3].kind, HeadKind::kWindow);
  EXPECT_FALSE(layer.reuse);
  EXPECT_NO_THROW(check_plan(chosen.plan.attention, wide));
  EXPECT_DOUBLE_EQ(table.cost_of(1, layer), 0.04);
}

TEST(Choose, ALayerOfWindowsTakesExemptTokensFromTheSetsBefore) {
  HeadTable table = random_table(5);
  std::fill(table.kl.begin(), table.kl.end(), 1.0);
  const int64_t window_only = table.options.n_choices() - 1;
  for (LayerCosts& costs : table.costs)
    for (auto* rows : {&costs.head, &costs.select})
      for (std::vector<double>& row : *rows) std::fill(row.begin(), row.end(), 0.01);
  for (int64_t head = 0; head < kHeads; ++head) {
    table.kl[table.at({0, head, 0, 0})] = 0;
    table.kl[table.at({1, head, 0, window_only})] = 0;
  }
  const Chosen chosen = choose(table, {}, shape(), 0);
  EXPECT_FALSE(chosen.plan.attention.layers[0].reuse);
  EXPECT_TRUE(chosen.plan.attention.layers[1].reuse);
  EXPECT_NO_THROW(check_plan(chosen.plan.attention, shape()));
  // Two heads, and the sets of the first layer alone.
  EXPECT_DOUBLE_EQ(table.cost_of(0, chosen.plan.attention.layers[0]), 0.03);
  EXPECT_DOUBLE_EQ(table.cost_of(1, chosen.plan.attention.layers[1]), 0.02);
}

TEST(Choose, APlansCostIsThatOfItsLayers) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const HeadTable table = random_table(seed);
    const Chosen chosen = choose(table, {}, shape(), 0.01);
    double cost = 0;
    for (int64_t i = 0; i < kLayers; ++i)
      cost += table.cost_of(i, chosen.plan.attention.layers[static_cast<size_t>(i)]);
    EXPECT_NEAR(cost, chosen.cost, 1e-12) << seed;
    EXPECT_LE(chosen.cost, cost_alone(table, chosen)) << seed;
  }
}

TEST(Choose, LinearGroupsAreChosenWithHeads) {
  HeadTable table = random_table(4);
  std::fill(table.kl.begin(), table.kl.end(), 1.0);
  const GroupPlan graded{.kind = LinearKind::kGraded, .epsilon = 0};
  const std::vector<GroupTable> groups = {
      {.layer = 1,
       .input = BasisInput::kMlpInner,
       .options = {{.plan = {}, .kl = 0, .cost = 1}, {.plan = graded, .kl = 0, .cost = 0.4}}},
      {.layer = 0,
       .input = BasisInput::kMlpInner,
       .options = {{.plan = {}, .kl = 0, .cost = 1}, {.plan = graded, .kl = 0, .cost = 1.1}}}};
  // Lossless and faster is taken at no budget at all; lossless and slower never.
  const Chosen chosen = choose(table, groups, shape(), 0);
  EXPECT_EQ(chosen.kl, 0);
  EXPECT_TRUE(chosen.plan.attention.all_dense());
  EXPECT_EQ(chosen.plan.linear.layers[1].of(BasisInput::kMlpInner), graded);
  EXPECT_EQ(chosen.plan.linear.layers[0].of(BasisInput::kMlpInner).kind, LinearKind::kDense);
}

}  // namespace
}  // namespace sluice::impl::test
