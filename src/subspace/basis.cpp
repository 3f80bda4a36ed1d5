#include "subspace/basis.h"

#include "core/error.h"

namespace sluice::impl {
namespace {

constexpr std::array<std::string_view, kBasisInputs.size()> kNames = {
    "attention_input", "attention_output", "mlp_input",
    "mlp_inner",       "selection_normed", "selection_residual"};

}  // namespace

std::string_view basis_input_name(BasisInput input) { return kNames[static_cast<size_t>(input)]; }

std::optional<BasisInput> basis_input_of(std::string_view name) {
  for (const BasisInput input : kBasisInputs)
    if (basis_input_name(input) == name) return input;
  return std::nullopt;
}

int64_t RowWidths::of(BasisInput input) const {
  if (input == BasisInput::kAttentionOutput) return attention;
  return input == BasisInput::kMlpInner ? inner : d_model;
}

double Basis::energy(int64_t k) const {
  SLUICE_CHECK(k >= 0 && static_cast<size_t>(k) <= spectrum.size());
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += spectrum[static_cast<size_t>(i)];
  return sum;
}

std::optional<int64_t> effective_rank(const std::vector<double>& spectrum, double share) {
  double sum = 0;
  for (size_t i = 0; i < spectrum.size(); ++i) {
    sum += spectrum[i];
    if (sum >= share) return static_cast<int64_t>(i) + 1;
  }
  return std::nullopt;
}

const Basis* Bases::find(int64_t layer, BasisInput input) const {
  for (const Basis& basis : list)
    if (basis.layer == layer && basis.input == input) return &basis;
  return nullptr;
}

}  // namespace sluice::impl
