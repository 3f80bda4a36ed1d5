#include "tune/reuse_search.h"

#include <algorithm>

#include "tune/reuse.h"

namespace sluice::impl {

Reuse worth_reusing(const Choices& choices, const Chosen& chosen, double most,
                    const std::function<std::vector<double>(const std::vector<Plan>&)>& kls_of) {
  struct Candidate {
    int64_t layer;
    double saved, lost = 0;
  };
  std::vector<Candidate> candidates;
  std::vector<Plan> plans = {chosen.plan};
  for (const int64_t layer : layers_that_may_reuse(chosen.plan.attention)) {
    const Chosen one = choices.reusing(chosen, {&layer, 1});
    if (one.cost >= chosen.cost) continue;
    candidates.push_back({.layer = layer, .saved = chosen.cost - one.cost});
    plans.push_back(one.plan);
  }
  Reuse reuse;
  if (candidates.empty()) return reuse;
  const std::vector<double> kls = kls_of(plans);
  for (size_t i = 0; i < candidates.size(); ++i)
    candidates[i].lost = std::max(0.0, kls[1 + i] - kls[0]);
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.saved * b.lost > b.saved * a.lost; });
  for (const Candidate& candidate : candidates)
    if (kls[0] + reuse.kl + candidate.lost <= most) {
      reuse.kl += candidate.lost;
      reuse.layers.push_back(candidate.layer);
    }
  return reuse;
}

}  // namespace sluice::impl
