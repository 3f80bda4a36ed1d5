// What tests of selection on a device expect. The CPU backend tells: its sets are the reference's,
// and it has them sooner.

#pragma once

#include "parity/select_cases.h"

namespace sluice::impl::test {

inline std::vector<TokenSet> expected_sets(const SelectInputs& in) {
  return select(*make_cpu_backend(DType::kF32), DType::kF32, in);
}

// As a model selects.
inline SelectInputs plain_inputs(const SelectCase& c, DType dtype, SelectRule rule,
                                 std::vector<double> taus) {
  SelectInputs in = select_inputs(c, dtype, rule, std::move(taus));
  in.spec.want_cosines = false;
  in.spec.sinks = 4;
  in.spec.outlier_ratio = 8;
  return in;
}

// The set of these rows, with every `turnover`-th token changed: what a layer before may have had.
inline std::vector<uint8_t> likely_flags(const SelectInputs& in, double tau, uint32_t turnover) {
  SelectInputs above = in;
  above.spec.rule = SelectRule::kGreedy;
  above.spec.taus = {tau};
  above.inherited.clear();
  std::vector<uint8_t> flags = membership(expected_sets(above)[0], 0, in.n_tokens);
  std::mt19937 random(turnover);
  for (uint8_t& flag : flags)
    if (random() % turnover == 0) flag ^= 1;
  return flags;
}

}  // namespace sluice::impl::test
