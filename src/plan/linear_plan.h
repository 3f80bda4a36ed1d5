// What the linear layers of every block do, as data. docs/algorithm.md, section 4.
//
// A layer has four linear inputs: the rows that q, k and v read, those of the output projection,
// those of the MLP and its inner activations (subspace/basis.h). A choice is made for each.

#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "subspace/basis.h"

namespace sluice::impl {

enum class LinearKind : uint8_t {
  kDense,
  kGsi,     // gated subspace: rows near a calibrated basis need its image only
  kGraded,  // the coordinates of a row that hold most of its energy
};

std::string_view linear_name(LinearKind kind);  // "dense", "gsi", "graded"
std::optional<LinearKind> linear_of(std::string_view name);

inline constexpr std::array kLinearInputs = {BasisInput::kAttentionInput,
                                             BasisInput::kAttentionOutput, BasisInput::kMlpInput,
                                             BasisInput::kMlpInner};

struct GroupPlan {
  LinearKind kind = LinearKind::kDense;
  int64_t rank = 0;      // gsi: directions of the basis in use
  double epsilon = 0;    // share of a row's norm that may be left out
  int64_t adaptive = 0;  // gsi: directions that a sequence may add to them

  bool operator==(const GroupPlan&) const = default;
};

struct LayerLinearPlan {
  std::array<GroupPlan, kLinearInputs.size()> groups;  // by linear input

  const GroupPlan& of(BasisInput input) const { return groups[static_cast<size_t>(input)]; }
  GroupPlan& of(BasisInput input) { return groups[static_cast<size_t>(input)]; }

  bool operator==(const LayerLinearPlan&) const = default;
};

struct LinearPlan {
  std::vector<LayerLinearPlan> layers;  // (n_layers), or empty: dense
  bool all_dense() const;

  bool operator==(const LinearPlan&) const = default;
};

// What a plan must fit.
struct LinearShape {
  int64_t n_layers = 0;
  RowWidths widths;
  bool parallel = false;  // attention and MLP read the same rows, and share a basis
  bool relu = false;      // inner activations are often exact zeros

  // Whose basis an input uses.
  BasisInput basis_of(BasisInput input) const {
    return parallel && input == BasisInput::kMlpInput ? BasisInput::kAttentionInput : input;
  }
};

// One choice for all layers and inputs.
struct UniformLinear {
  LinearKind kind = LinearKind::kDense;
  int64_t rank = 0;
  double epsilon = 0.1;
  int64_t adaptive = 0;
};

// With `graded` and epsilon 0 only inputs with exact zeros are graded: the inner activations of a
// ReLU model. Throws Error where there are none, and what check_linear_plan throws but for bases.
LinearPlan uniform_linear_plan(const UniformLinear& choice, const LinearShape& shape);

// Throws Error for a plan that the model cannot follow or that has no meaning; with gsi, also when
// a basis is not among `bases` (nullptr: there are none) or has too few directions.
void check_linear_plan(const LinearPlan& plan, const LinearShape& shape, const Bases* bases);

}  // namespace sluice::impl
