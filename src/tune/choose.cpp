#include "tune/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"

namespace sluice::impl {
namespace {

constexpr int64_t kDenseHead = -1;

struct LayerChoice {
  std::vector<int64_t> heads;  // choices, or kDenseHead
  size_t window = 0;
  double kl = 0, cost = 0;
  double value(double price) const { return cost + price * kl; }
  bool all_dense() const {
    return std::all_of(heads.begin(), heads.end(), [](int64_t head) { return head == kDenseHead; });
  }
};

// Finding the sets in use; what a window alone needs, every set tells.
double select_cost(const std::vector<double>& select, const std::vector<bool>& used) {
  double cost = 0;
  for (size_t i = 0; i + 1 < used.size(); ++i)
    if (used[i]) cost += select[i];
  return cost > 0 || !used.back() ? cost : select.back();
}

class LayerChooser {
 public:
  LayerChooser(const HeadTable& table, int64_t layer, double price)
      : table_(table),
        layer_(layer),
        costs_(table.costs[static_cast<size_t>(layer)]),
        price_(price),
        by_sets_(!table.options.refines()) {}

  LayerChoice choose() const {
    LayerChoice best = dense();
    // Without sets every head may have any threshold.
    const int64_t n_taus = by_sets_ ? std::ssize(table_.options.taus) : 0;
    for (size_t window = 0; window < table_.options.windows.size(); ++window)
      for (int64_t first = -1; first < n_taus; ++first)
        for (int64_t second = first; second < (first < 0 ? 0 : n_taus); ++second) {
          const LayerChoice found = with_sets(window, first, second);
          if (found.value(price_) < best.value(price_)) best = found;
        }
    return best;
  }

 private:
  LayerChoice dense() const {
    LayerChoice choice;
    choice.heads.assign(static_cast<size_t>(table_.n_heads), kDenseHead);
    choice.cost = costs_.dense_head * static_cast<double>(table_.n_heads);
    return choice;
  }

  // Heads may cluster by one of two sets (the same one twice, or -1 for none), have their window
  // alone, for which exempt tokens must be found where no set tells, or stay exact.
  LayerChoice with_sets(size_t window, int64_t first, int64_t second) const {
    LayerChoice choice;
    choice.window = window;
    std::vector<bool> used(static_cast<size_t>(table_.options.n_costs()));
    for (int64_t head = 0; head < table_.n_heads; ++head) {
      int64_t best = kDenseHead;
      double best_kl = 0, best_cost = costs_.exact_head[window];
      for (int64_t i = 0; i < table_.options.n_choices(); ++i) {
        const size_t at = table_.options.cost_of(i);
        if (by_sets_ && table_.options.clusters(i) && std::cmp_not_equal(at, first) &&
            std::cmp_not_equal(at, second))
          continue;
        const double kl = table_.kl[table_.at({layer_, head, window, i})];
        const double cost = costs_.head[window][at];
        if (cost + price_ * kl >= best_cost + price_ * best_kl) continue;
        best = i;
        best_kl = kl;
        best_cost = cost;
      }
      choice.heads.push_back(best);
      if (best != kDenseHead) used[table_.options.cost_of(best)] = true;
      choice.kl += best_kl;
      choice.cost += best_cost;
    }
    choice.cost += select_cost(costs_.select[window], used);
    return choice;
  }

  const HeadTable& table_;
  int64_t layer_;
  const LayerCosts& costs_;
  double price_;
  bool by_sets_;
};

}  // namespace

size_t HeadTable::at(const HeadChange& change) const {
  const auto n_windows = std::ssize(options.windows), n_choices = options.n_choices();
  return static_cast<size_t>(
      ((change.layer * n_heads + change.head) * n_windows + static_cast<int64_t>(change.window)) *
          n_choices +
      change.choice);
}

double HeadTable::cost_of(int64_t layer, const LayerPlan& plan) const {
  const LayerCosts& of = costs[static_cast<size_t>(layer)];
  if (plan.mode == AttentionMode::kDense) return of.dense_head * static_cast<double>(n_heads);
  const auto at = std::find(options.windows.begin(), options.windows.end(), plan.window);
  SLUICE_CHECK(at != options.windows.end());
  const auto window = static_cast<size_t>(at - options.windows.begin());
  std::vector<bool> used(static_cast<size_t>(options.n_costs()));
  double cost = 0;
  for (const HeadPlan& head : plan.heads) {
    if (head.kind == HeadKind::kDense) {
      cost += of.exact_head[window];
      continue;
    }
    const size_t i = options.cost_of(head);
    cost += of.head[window][i];
    used[i] = true;
  }
  return plan.reuse ? cost : cost + select_cost(of.select[window], used);
}

double HeadTable::cost_of(const AttentionPlan& plan) const {
  double sum = 0;
  for (int64_t layer = 0; layer < n_layers; ++layer)
    sum += cost_of(layer, plan.layers[static_cast<size_t>(layer)]);
  return sum;
}

Chosen choose_at(const HeadTable& heads, const std::vector<GroupTable>& groups,
                 const PlanShape& shape, double price) {
  Chosen chosen;
  chosen.plan.attention = dense_plan(shape);
  bool selected = false;  // some layer before has sets
  for (int64_t layer = 0; layer < heads.n_layers; ++layer) {
    const LayerChoice choice = LayerChooser(heads, layer, price).choose();
    chosen.kl += choice.kl;
    if (choice.all_dense()) continue;
    LayerPlan& plan = chosen.plan.attention.layers[static_cast<size_t>(layer)];
    plan = exact_layer(heads.options, shape, heads.options.windows[choice.window]);
    for (size_t head = 0; head < choice.heads.size(); ++head)
      if (choice.heads[head] != kDenseHead)
        plan.heads[head] = heads.options.choice(choice.heads[head]);
    // Windows need exempt tokens alone; those that the layer before knows will do.
    plan.reuse = selected && !plan.clusters();
    selected = plan.selects();
  }
  chosen.cost = heads.cost_of(chosen.plan.attention);
  for (const GroupTable& group : groups) {
    SLUICE_CHECK(!group.options.empty());
    const GroupOption& best =
        *std::min_element(group.options.begin(), group.options.end(),
                          [&](const GroupOption& a, const GroupOption& b) {
                            return a.cost + price * a.kl < b.cost + price * b.kl;
                          });
    chosen.kl += best.kl;
    chosen.cost += best.cost;
    if (best.plan.kind == LinearKind::kDense) continue;
    chosen.plan.linear.layers.resize(static_cast<size_t>(shape.n_layers));
    chosen.plan.linear.layers[static_cast<size_t>(group.layer)].of(group.input) = best.plan;
  }
  return chosen;
}

Chosen choose(const HeadTable& heads, const std::vector<GroupTable>& groups, const PlanShape& shape,
              double budget) {
  SLUICE_CHECK(budget >= 0);
  if (Chosen all = choose_at(heads, groups, shape, 0); all.kl <= budget) return all;
  // KL falls as the price rises. Prices span the costs of the table over its KLs by far.
  constexpr double kLowest = 1e-12, kHighest = 1e24;
  double low = std::log(kLowest), high = std::log(kHighest);
  Chosen best = choose_at(heads, groups, shape, std::numeric_limits<double>::max());
  if (best.kl > budget) return best;  // what costs less at no loss at all
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    Chosen found = choose_at(heads, groups, shape, std::exp(middle));
    if (found.kl <= budget) {
      high = middle;
      best = std::move(found);
    } else {
      low = middle;
    }
  }
  return best;
}

}  // namespace sluice::impl
