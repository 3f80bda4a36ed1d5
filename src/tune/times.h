// What choices cost on this machine: time per layer and head, bytes of the cache, or keys that are
// read, measured on runs in which all heads do the same.

#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "model/model.h"
#include "plan/plan_file.h"
#include "tune/choose.h"
#include "tune/measurements.h"

namespace sluice::impl {

// tokens: as many as the context, for kDecode kDecodeTokens more. Costs are in ms, bytes or keys.
inline constexpr int64_t kDecodeTokens = 128;  // a block: its selection falls among them

struct CostOptions {
  PlanObjective objective = PlanObjective::kPrefill;
  HeadOptions heads;
  std::vector<GroupPlan> linear;  // kinds of groups other than dense; what they need is prepared
};

struct Costs {
  std::vector<LayerCosts> heads;  // (n_layers)
  // (n_layers, linear inputs, 1 + linear): dense first.
  std::vector<std::vector<std::vector<double>>> linear;

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(heads, linear);
  }
};

// progress: the share done.
Costs measure_costs(Model& model, std::span<const int32_t> tokens, const CostOptions& options,
                    const std::function<void(double)>& progress);

// Where costs are kept from run to run: those of other machines, objectives and options stay.
struct KeptCosts {
  std::string machine;
  Measurements& measurements;
};
// What they are kept under.
std::string costs_key(const std::string& machine, const CostOptions& options);
// The same, or what an earlier run measured.
Costs known_costs(Model& model, std::span<const int32_t> tokens, const CostOptions& options,
                  const KeptCosts& kept, const std::function<void(double)>& progress);

nlohmann::json describe_costs(const Costs& costs);
// The same back; nothing where it does not fit the options and the model.
std::optional<Costs> costs_from(const nlohmann::json& json, const CostOptions& options,
                                int64_t n_layers);

}  // namespace sluice::impl
