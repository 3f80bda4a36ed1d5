// Bases that leave nothing out.

#pragma once

#include "model/model.h"
#include "unit/subspace/random_matrices.h"

namespace sluice::impl::test {

inline Bases full_bases(const ModelSpec& spec) {
  Bases bases;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    for (const BasisInput input : kLinearInputs) {
      const int64_t d = spec.row_widths().of(input);
      bases.list.push_back(
          {.layer = layer,
           .input = input,
           .d = d,
           .rank = d,
           .vectors = as_floats(random_orthonormal(d, d, static_cast<uint32_t>(layer + 1))),
           .spectrum = {}});
    }
  return bases;
}

}  // namespace sluice::impl::test
