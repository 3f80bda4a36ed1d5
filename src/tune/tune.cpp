#include "tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ranks/divide.h"
#include "tune/changes.h"
#include "tune/choices.h"
#include "tune/needles.h"
#include "tune/plan_speed.h"
#include "tune/reuse_search.h"

namespace sluice::impl {
namespace {

// Budgets are tried until the contract is used up so far, on calibration windows.
constexpr double kWellUsed = 0.9;
constexpr int kMostBudgets = 8;
// Of a budget that did not hold on other text, to the power of how often that was so; and how often
// with sets of the layer before.
constexpr double kBackOff = 0.95;
constexpr int kReuseTries = 3;
// How often a budget between one that held there and one that did not is tried.
constexpr int kMostReturns = 2;
constexpr double kNearlyAlike = 1.001;
// A plan below this gains nothing.
constexpr double kLeastBudget = 1e-6;
// Parts of the budget that are left for choices other than reused sets, and windows to see what
// those lose.
constexpr double kReuseShares[] = {1, 0.75, 0.5};
constexpr size_t kReuseWindows = 4;
// A budget that allows all there is.
constexpr double kAnything = 1e9;

class Tuner {
 public:
  Tuner(Model& model, const TuneOptions& options, Measurements& measurements,
        const std::function<void(double, const std::string&)>& progress)
      : model_(model),
        options_(options),
        measurements_(measurements),
        progress_(progress),
        heads_(options.heads),
        shape_(model.plan_shape()) {
    heads_.strict = options.objective == PlanObjective::kDecode ||
                    options.objective == PlanObjective::kDecodeReads;
  }

  TuneResult run(TextStream& text) {
    if (options_.objective == PlanObjective::kDecode &&
        lengths_to_time(options_.split.context, model_.context())[0] + kDecodeTokens >
            model_.context())
      throw Error(fmt::format("a context of {} has no room to time {} tokens of decoding",
                              model_.context(), kDecodeTokens),
                  "--objective prefill");
    for (const int64_t window : heads_.windows)
      check_plan(plan_of_all(heads_, window, heads_.choice(0), shape_), shape_);
    const bool causal = model_.spec().causal;
    result_.text =
        causal ? split_text(text, options_.split) : split_masked_text(model_, text, options_.split);
    if (options_.needles && causal)
      add_needles(text.tokenizer(), options_.split.seed, result_.text);
    measurements_.share(ranks());
    result_.resumed = measurements_.resumed();
    losses_.emplace(model_, windows(), ranks());
    held_out_losses_.emplace(model_, result_.text.held_out, ranks());
    changes_.emplace(model_, windows(),
                     ChangeOptions{.heads = heads_,
                                   .linear = options_.linear,
                                   .budget = options_.contract.first_budget(),
                                   .communicator = options_.communicator},
                     measurements_);
    changes_->measure(
        [&](double done, const std::string& now) { report(kChangesDone * done, now); });
    choices_.emplace(make_choices());
    result_.dense_cost = choices_->dense_cost();
    find_budget();
    try_reuse();
    hold_out();
    time_plan();
    return std::move(result_);
  }

 private:
  const std::vector<TuneWindow>& windows() const { return result_.text.calibration; }
  Communicator& ranks() const { return *options_.communicator; }

  Choices make_choices() {
    const CostOptions options{
        .objective = options_.objective, .heads = heads_, .linear = options_.linear};
    const int64_t n =
        options_.split.context + (options_.objective == PlanObjective::kDecode ? kDecodeTokens : 0);
    Costs costs;
    if (ranks().rank() == 0)
      costs = known_costs(model_, tokens_of(windows(), std::min(n, model_.context())), options,
                          {options_.machine, measurements_}, [&](double done) {
                            report(kChangesDone + (kCostsDone - kChangesDone) * done,
                                   "cost of every choice");
                          });
    share_from_first(ranks(), costs);
    return {shape_, options, costs, *changes_};
  }

  // Within a budget of predicted KL, of which the layers that reuse sets take their part.
  Chosen chosen_at(double budget) const {
    Chosen chosen = choices_->within(reuse_.share * budget);
    if (reuse_.layers.empty()) return chosen;
    chosen.kl += reuse_.kl;
    return choices_->reusing(std::move(chosen), reuse_.layers);
  }

  // KL of plans on some calibration windows.
  std::vector<double> kls_of(const std::vector<Plan>& plans) {
    std::vector<double> means;
    for (const Loss& loss : losses_->of(plans, kReuseWindows)) means.push_back(loss.kl.mean());
    return means;
  }

  // A plan that saves decoding is measured as decoding runs it.
  Loss loss_of(PlanLosses& losses, Plan plan) const {
    if (heads_.strict) plan.attention = with_strict_tiles(std::move(plan.attention));
    return losses.of(plan);
  }

  // What reused sets lose depends on the plan, so it is measured on it.
  void try_reuse() {
    if (heads_.refines() || budget_ <= kLeastBudget) return;
    const Chosen whole = choices_->within(budget_);
    const double most = kls_of({whole.plan})[0];
    double least_cost = whole.cost;
    for (const double share : kReuseShares) {
      report(kReuseDone, "sets of the layer before");
      const Chosen base = choices_->within(share * budget_);
      Reuse reuse = worth_reusing(*choices_, base, most,
                                  [&](const std::vector<Plan>& plans) { return kls_of(plans); });
      reuse.share = share;
      const Chosen found = choices_->reusing(base, reuse.layers);
      if (reuse.layers.empty() || found.cost >= least_cost ||
          options_.contract.excess(losses_->of(found.plan), /*n_errors=*/0) > 1)
        continue;
      least_cost = found.cost;
      reuse_ = reuse;
    }
  }

  TuneStep try_budget(double budget, bool held_out) {
    chosen_ = chosen_at(budget);
    TuneStep step{.budget = budget,
                  .predicted = chosen_.kl,
                  .loss = loss_of(held_out ? *held_out_losses_ : *losses_, chosen_.plan),
                  .held_out = held_out};
    result_.steps.push_back(step);
    // Budgets halve what is left of their share.
    const double from = held_out ? kReuseDone : kCostsDone,
                 to = held_out ? kSearchDone : kReuseDone;
    report(std::max(done_, from) + (to - std::max(done_, from)) / 2,
           fmt::format("KL {:.5f} for {:.5f} predicted", step.loss.kl.mean(), step.predicted));
    return step;
  }

  // The largest budget that the contract allows on calibration windows, or nearly so.
  void find_budget() {
    double low = 0, high = std::numeric_limits<double>::infinity();
    double budget = options_.contract.first_budget();
    for (int i = 0; i < kMostBudgets && budget > kLeastBudget; ++i) {
      const TuneStep step = try_budget(budget, false);
      // The mean alone: how sure it is, more documents tell below.
      const double used = options_.contract.excess(step.loss, /*n_errors=*/0);
      if (used <= 1) {
        low = budget;
        if (used >= kWellUsed) break;
        // Nothing more to be had.
        if (choices_->within(kAnything).kl <= budget) break;
      } else {
        high = budget;
      }
      const double scaled = budget * std::clamp(0.95 / std::max(used, 1e-9), 0.25, 4.0);
      budget = std::isfinite(high) && low > 0 && (scaled <= low || scaled >= high)
                   ? std::sqrt(low * high)
                   : scaled;
    }
    budget_ = low;
  }

  // Held-out documents decide; what they do not allow is not promised.
  void hold_out() {
    const double found = budget_;
    double failed = std::numeric_limits<double>::infinity();  // the least that did
    for (int n_failed = 0;;) {
      if (budget_ <= kLeastBudget) budget_ = 0;  // what loses nothing is left
      const TuneStep step = try_budget(budget_, true);
      if (options_.contract.holds(step.loss)) return keep(go_back(step, failed));
      failed = budget_;
      ++n_failed;
      if (!reuse_.layers.empty() && (n_failed == kReuseTries || budget_ == 0)) {
        // Other text may need sets of its own.
        reuse_ = {};
        budget_ = found;
        failed = std::numeric_limits<double>::infinity();
        n_failed = 0;
        continue;
      }
      if (budget_ == 0) break;
      budget_ *= std::min(std::pow(kBackOff, n_failed), 1 / options_.contract.excess(step.loss));
      // Many budgets buy the same choices, which are looked at once.
      while (budget_ > kLeastBudget && chosen_at(budget_).kl == step.predicted) budget_ *= kBackOff;
    }
    be_dense("no change stays within the contract");
  }

  // Backing off may have gone too far: budgets towards the one that failed.
  TuneStep go_back(TuneStep held, double failed) {
    for (int n_looks = 0; n_looks < kMostReturns && std::isfinite(failed) && held.budget > 0 &&
                          held.budget * kNearlyAlike < failed &&
                          options_.contract.excess(held.loss) < kWellUsed;) {
      const double budget = std::sqrt(held.budget * failed), kl = chosen_at(budget).kl;
      if (kl == chosen_at(failed).kl) {
        failed = budget;
      } else if (kl == chosen_at(held.budget).kl) {
        held.budget = budget;
      } else {
        ++n_looks;
        const TuneStep step = try_budget(budget, true);
        if (options_.contract.holds(step.loss))
          held = step;
        else
          failed = step.budget;
      }
    }
    chosen_ = chosen_at(held.budget);
    return held;
  }

  void keep(const TuneStep& step) {
    result_.plan = chosen_.plan;
    result_.predicted_kl = chosen_.kl;
    result_.cost = chosen_.cost;
    result_.held_out = step.loss;
    result_.calibration = loss_of(*losses_, chosen_.plan);
    if (result_.plan.attention.all_dense() && result_.plan.linear.all_dense())
      be_dense("no choice saves anything within the contract");
  }

  void be_dense(const std::string& why) {
    result_.plan = {.attention = dense_plan(shape_)};
    result_.dense_because = why;
    result_.predicted_kl = 0;
    result_.cost = result_.dense_cost;
    result_.held_out = no_loss(model_, result_.text.held_out);
    result_.calibration = no_loss(model_, windows());
    result_.prefill_from = result_.decode_from = std::nullopt;
  }

  void time_plan() {
    if (!result_.dense_because.empty()) return;
    PlanSpeed speed;
    if (ranks().rank() == 0)
      speed = impl::time_plan(model_, result_.plan, result_.text.held_out,
                              {.context = options_.split.context,
                               .objective = options_.objective,
                               .mode = heads_.mode,
                               .rounds = options_.bench_rounds},
                              [&](double done, const std::string& now) {
                                report(kSearchDone + (1 - kSearchDone) * done, now);
                              });
    share_from_first(ranks(), speed.pays);
    share_from_first(ranks(), speed.prefill_from);
    share_from_first(ranks(), speed.decode_from);
    if (!speed.pays) {
      result_.rejected_speed = std::move(speed.bench);
      return be_dense(
          "the plan was not faster than dense, beyond noise, at the greatest length measured");
    }
    result_.speed = std::move(speed.bench);
    result_.prefill_from = speed.prefill_from;
    result_.decode_from = speed.decode_from;
  }

  // Shares of the work that are done after each part.
  static constexpr double kChangesDone = 0.75, kCostsDone = 0.82, kReuseDone = 0.9,
                          kSearchDone = 0.95;
  void report(double done, const std::string& now) {
    done_ = std::max(done_, done);
    progress_(done_, now);
  }

  Model& model_;
  const TuneOptions& options_;
  Measurements& measurements_;
  const std::function<void(double, const std::string&)>& progress_;
  HeadOptions heads_;
  PlanShape shape_;
  TuneResult result_;
  std::optional<Changes> changes_;
  std::optional<PlanLosses> losses_, held_out_losses_;  // on calibration windows; on the others
  std::optional<Choices> choices_;
  Reuse reuse_;
  Chosen chosen_;
  double budget_ = 0;
  double done_ = 0;
};

}  // namespace

TuneResult tune(Model& model, TextStream& text, const TuneOptions& options,
                Measurements& measurements,
                const std::function<void(double, const std::string&)>& progress) {
  TuneResult result;
  const double ms =
      time_ms([&] { result = Tuner(model, options, measurements, progress).run(text); });
  result.seconds = 1e-3 * ms;
  return result;
}

}  // namespace sluice::impl
