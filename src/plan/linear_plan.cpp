#include "plan/linear_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace sluice::impl {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"dense", "gsi", "graded"};

void check_group(const GroupPlan& group, int64_t width, const std::string& where) {
  if (group.kind == LinearKind::kDense) return;
  if (!(group.epsilon >= 0 && group.epsilon <= 1))
    throw Error(fmt::format("{}: epsilon {} is outside 0 … 1", where, group.epsilon),
                "the share of a row's norm that may be left out; 0.05 is a careful one");
  if (group.kind != LinearKind::kGsi) return;
  if (group.rank < 1 || group.rank > width)
    throw Error(fmt::format("{}: rank {} is outside 1 … {}, the width of its rows", where,
                            group.rank, width),
                "--rank takes the directions of a basis to use");
  if (group.adaptive < 0 || group.adaptive > width - group.rank)
    throw Error(fmt::format("{}: {} more directions than {} do not fit rows of {}", where,
                            group.adaptive, group.rank, width),
                fmt::format("--adaptive {} or less", width - group.rank));
}

void check_basis(const GroupPlan& group, const Basis* basis, const std::string& where) {
  if (basis == nullptr)
    throw Error(fmt::format("{}: there is no basis for it", where),
                "make bases with sluice calibrate and give them with --bases");
  if (basis->rank < group.rank)
    throw Error(
        fmt::format("{}: rank {} is asked for, its basis has {}", where, group.rank, basis->rank),
        "calibrate with a larger --rank, or ask for less");
}

}  // namespace

std::string_view linear_name(LinearKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<LinearKind> linear_of(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<LinearKind>(i);
  return {};
}

bool LinearPlan::all_dense() const {
  return std::all_of(layers.begin(), layers.end(), [](const LayerLinearPlan& layer) {
    return std::all_of(layer.groups.begin(), layer.groups.end(),
                       [](const GroupPlan& group) { return group.kind == LinearKind::kDense; });
  });
}

LinearPlan uniform_linear_plan(const UniformLinear& choice, const LinearShape& shape) {
  LinearPlan plan;
  if (choice.kind == LinearKind::kDense) return plan;
  plan.layers.resize(static_cast<size_t>(shape.n_layers));
  const bool zeros_only = choice.kind == LinearKind::kGraded && choice.epsilon == 0;
  if (zeros_only && !shape.relu)
    throw Error("graded with epsilon 0 skips exact zeros alone, and this model has none",
                "ReLU models (OPT) have; --epsilon 0.05 leaves out small numbers too");
  for (LayerLinearPlan& layer : plan.layers)
    for (const BasisInput input : kLinearInputs) {
      if (zeros_only && input != BasisInput::kMlpInner) continue;
      GroupPlan& group = layer.of(input);
      group.kind = choice.kind;
      group.epsilon = choice.epsilon;
      if (choice.kind != LinearKind::kGsi) continue;
      group.rank = choice.rank;
      group.adaptive = choice.adaptive;
    }
  for (const BasisInput input : kLinearInputs)
    check_group(plan.layers.front().of(input), shape.widths.of(input),
                std::string(basis_input_name(input)));
  return plan;
}

void check_linear_plan(const LinearPlan& plan, const LinearShape& shape, const Bases* bases) {
  if (plan.layers.empty()) return;
  if (static_cast<int64_t>(plan.layers.size()) != shape.n_layers)
    throw Error(
        fmt::format("the plan has {} layers, the model {}", plan.layers.size(), shape.n_layers),
        "was the plan made for this model?");
  for (int64_t l = 0; l < shape.n_layers; ++l)
    for (const BasisInput input : kLinearInputs) {
      const GroupPlan& group = plan.layers[static_cast<size_t>(l)].of(input);
      const std::string where = fmt::format("layer {}, {}", l, basis_input_name(input));
      check_group(group, shape.widths.of(input), where);
      if (group.kind == LinearKind::kGsi)
        check_basis(group, bases == nullptr ? nullptr : bases->find(l, shape.basis_of(input)),
                    where);
    }
}

}  // namespace sluice::impl
