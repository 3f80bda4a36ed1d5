#include <fmt/format.h>

#include <optional>

#include "cli/conclusion/conclusion.h"

namespace sluice::impl::cli {
namespace {

constexpr double kUsualKl = 0.01;  // nats a token: what examples and docs take as accepted

double kl_of(const PlanComparison& plan) { return plan.tokens.value(metric("kl_mean")); }
// Those of a plan whose attention is dense are all.
double keys_read_of(const PlanComparison& plan) { return plan.work.keys_read_fraction(); }

std::string of_one(const PlanComparison& plan, const std::string& label) {
  const double kl = kl_of(plan);
  return fmt::format("{} loses KL {:.4f} a token, {} {}, and reads {:.0f}% of the keys.", label, kl,
                     kl <= kUsualKl ? "within" : "above", kUsualKl, 100 * keys_read_of(plan));
}

std::string of_several(const CompareResult& result, const std::vector<std::string>& labels) {
  std::optional<size_t> fewest;
  size_t least = 0;
  for (size_t i = 0; i < result.plans.size(); ++i) {
    const PlanComparison& plan = result.plans[i];
    if (kl_of(plan) < kl_of(result.plans[least])) least = i;
    if (kl_of(plan) <= kUsualKl &&
        (!fewest || keys_read_of(plan) < keys_read_of(result.plans[*fewest])))
      fewest = i;
  }
  if (!fewest)
    return fmt::format("None stays within KL {}; {} loses least, KL {:.4f} a token.", kUsualKl,
                       labels[least], kl_of(result.plans[least]));
  return fmt::format(
      "Within KL {}, {} reads the fewest keys, {:.0f}%, and loses KL {:.4f} a token.", kUsualKl,
      labels[*fewest], 100 * keys_read_of(result.plans[*fewest]), kl_of(result.plans[*fewest]));
}

}  // namespace

std::string eval_conclusion(const CompareResult& result, const std::vector<std::string>& labels) {
  return (labels.size() == 1 ? of_one(result.plans.front(), labels.front())
                             : of_several(result, labels)) +
         " Does it pay here: sluice bench with the same choice; the fastest within a loss you "
         "state: sluice tune.";
}

}  // namespace sluice::impl::cli
