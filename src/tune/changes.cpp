#include "tune/changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "ranks/divide.h"

namespace sluice::impl {
namespace {

constexpr std::chrono::seconds kSaveEvery{10};
// Windows that every change is looked at in.
constexpr size_t kFirstLook = 2;
// Of the budget: a change that takes more alone is hardly ever worth it.
constexpr double kTooMuch = 0.5;
// Of the budget, all heads together: what is less does not show.
constexpr double kTooLittle = 0.05;
// Far keys that lose so many times what others do are not looked at again.
constexpr double kBeaten = 1.25;

std::string group_name(int64_t layer, BasisInput input, const GroupPlan& plan) {
  return fmt::format("layer {} {} {}", layer, basis_input_name(input), group_text(plan));
}

}  // namespace

std::string group_text(const GroupPlan& plan) {
  return fmt::format("{} k{} e{} a{}", linear_name(plan.kind), plan.rank, plan.epsilon,
                     plan.adaptive);
}

Changes::Changes(Model& model, const std::vector<TuneWindow>& windows, const ChangeOptions& options,
                 Measurements& measurements)
    : model_(model),
      windows_(windows),
      options_(options),
      measurements_(measurements),
      shape_(model.plan_shape()),
      n_scored_(
          WindowReference::n_scored_in(model, windows.at(0), WindowReference::Purpose::kChanges)) {}

Changes::Change Changes::change_of(const HeadChange& change) const {
  const HeadOptions& heads = options_.heads;
  Change out{.name = change.name(heads),
             .layer = change.layer,
             .plan = {.attention = plan_with(change, heads, shape_)}};
  for (int64_t other = 0; other < heads.n_choices(); ++other)
    if (other != change.choice && heads.cost_of(other) == heads.cost_of(change.choice))
      out.rivals.push_back(HeadChange{change.layer, change.head, change.window, other}.name(heads));
  return out;
}

Changes::Change Changes::change_of(int64_t layer, BasisInput input, const GroupPlan& group) const {
  return {.name = group_name(layer, input, group),
          .layer = layer,
          .plan = {.linear = linear_plan_with(layer, input, group, shape_.n_layers)}};
}

std::vector<Changes::Change> Changes::all() const {
  std::vector<Change> changes;
  const HeadOptions& heads = options_.heads;
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (int64_t head = 0; !shape_.stays_dense(layer) && head < shape_.n_kv_heads; ++head)
      for (size_t window = 0; window < heads.windows.size(); ++window)
        for (int64_t choice = 0; choice < heads.n_choices(); ++choice)
          changes.push_back(change_of({layer, head, window, choice}));
    for (const BasisInput input : kLinearInputs)
      for (const GroupPlan& group : options_.linear)
        changes.push_back(change_of(layer, input, group));
  }
  return changes;
}

// Whether nothing more is to be measured of it in this window.
bool Changes::is_known(const Change& change, size_t window) const {
  return measurements_.kl(change.name).size() > window ||
         (window >= kFirstLook && is_settled(change));
}

// The exact model runs once per window, on every rank; each change then begins at its own layer.
void Changes::measure(const std::function<void(double, const std::string&)>& progress) {
  const std::vector<Change> changes = all();
  auto saved = std::chrono::steady_clock::now();
  for (size_t window = 0; window < windows_.size(); ++window) {
    // Nothing that is measured in this window decides what else is.
    std::vector<size_t> wanted;
    for (size_t i = 0; i < changes.size(); ++i)
      if (!is_known(changes[i], window)) wanted.push_back(i);
    std::optional<WindowReference> reference;
    size_t n_begun = 0, n_done = 0;
    const auto next = [&] {
      if (n_begun == wanted.size()) return false;
      const size_t i = wanted[n_begun++];
      progress(static_cast<double>(window * changes.size() + i) /
                   static_cast<double>(changes.size() * windows_.size()),
               changes[i].name);
      return true;
    };
    const auto work = [&] {
      if (!reference)
        reference.emplace(model_, windows_[window], WindowReference::Purpose::kChanges);
      const Change& change = changes[wanted[n_begun - 1]];
      return reference->kl_sum(change.plan, change.layer);
    };
    const auto use = [&](double sum) {
      measurements_.add_kl(changes[wanted[n_done++]].name, sum);
      if (std::chrono::steady_clock::now() - saved <= kSaveEvery) return;
      measurements_.save();
      saved = std::chrono::steady_clock::now();
    };
    divide<double>(*options_.communicator, next, work, use);
    if (!wanted.empty()) measurements_.save();
  }
}

double Changes::first_look(const std::string& name) const {
  const std::vector<double>& sums = measurements_.kl(name);
  const auto n = static_cast<int64_t>(std::min(kFirstLook, windows_.size()));
  SLUICE_CHECK(std::ssize(sums) >= n);
  return std::accumulate(sums.begin(), sums.begin() + n, 0.0) / static_cast<double>(n * n_scored_);
}

bool Changes::is_settled(const Change& change) const {
  const double kl = first_look(change.name);
  const auto n_heads = static_cast<double>(shape_.n_layers * shape_.n_kv_heads);
  if (kl > kTooMuch * options_.budget || kl < kTooLittle * options_.budget / n_heads) return true;
  return std::any_of(change.rivals.begin(), change.rivals.end(),
                     [&](const std::string& rival) { return kBeaten * first_look(rival) < kl; });
}

double Changes::mean_kl(const Change& change) const {
  if (is_settled(change)) return first_look(change.name);
  const std::vector<double>& sums = measurements_.kl(change.name);
  const auto n = static_cast<int64_t>(windows_.size());
  SLUICE_CHECK(std::ssize(sums) >= n);
  return std::accumulate(sums.begin(), sums.begin() + n, 0.0) / static_cast<double>(n * n_scored_);
}

double Changes::kl(const HeadChange& change) const { return mean_kl(change_of(change)); }

double Changes::kl(int64_t layer, BasisInput input, const GroupPlan& group) const {
  return mean_kl(change_of(layer, input, group));
}

}  // namespace sluice::impl
