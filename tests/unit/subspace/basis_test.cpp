#include "subspace/basis.h"

#include <gtest/gtest.h>

namespace sluice::impl {
namespace {

TEST(BasisInput, NamesComeBack) {
  for (const BasisInput input : kBasisInputs)
    EXPECT_EQ(basis_input_of(basis_input_name(input)), input);
  EXPECT_EQ(basis_input_name(BasisInput::kMlpInner), "mlp_inner");
  EXPECT_EQ(basis_input_of("mlp"), std::nullopt);
}

TEST(Basis, EnergyAndEffectiveRankFollowTheSpectrum) {
  Basis basis;
  basis.rank = 2;
  basis.spectrum = {0.5, 0.25, 0.125};
  EXPECT_EQ(basis.energy(), 0.75);
  EXPECT_EQ(basis.energy(3), 0.875);
  EXPECT_EQ(effective_rank(basis.spectrum, 0.5), 1);
  EXPECT_EQ(effective_rank(basis.spectrum, 0.76), 3);
  EXPECT_EQ(effective_rank(basis.spectrum, 0.9), std::nullopt);
}

}  // namespace
}  // namespace sluice::impl
