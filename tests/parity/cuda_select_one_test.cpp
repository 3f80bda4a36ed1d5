// Selection token by token, as decoding asks for it.

#include <array>

#include "parity/select_cases.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// Where few cases are asked for, those in the middle together.
std::vector<int64_t> every_token_from(int64_t first, int64_t n) {
  std::vector<int64_t> cuts;
  for (int64_t t = first; t < n; ++t)
    if (!kFewCases || t < first + 2 || t > n - 4) cuts.push_back(t);
  return cuts;
}

// Long enough for a median of norms that stands still.
TEST_P(EveryBackend, OneTokenAtATimeGivesTheSetsOfTheReference) {
  const std::array both = {true, false};
  for (const auto& [kind, rule, cosines] :
       thinned(combinations(kRowKinds, kCausalRules, both), 7)) {
    SCOPED_TRACE(testing::Message()
                 << "rows " << static_cast<int>(kind) << ", rule " << static_cast<int>(rule));
    const SelectCase c{kind, 300, 64, 0.5, 11};
    SelectInputs in = select_inputs(c, dtype(), rule, {0.5, 0.0, 0.3});
    in.spec.sinks = 3;
    in.spec.outlier_ratio = 1.2;
    in.residual = random_values(c.n_tokens * c.d_model, 5);
    for (size_t i = 0; i < in.residual.size(); ++i)
      if (i / 64 % 5 == 0) in.residual[i] *= 1.25f;
    in.spec.want_cosines = cosines;
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in, every_token_from(1, c.n_tokens)),
                          select(*reference, DType::kF32, in)));
  }
}

TEST_P(EveryBackend, OneTokenAfterALongPassHasTheSetOfTheReference) {
  const SelectCase c{RowKind::kClusters, 1100, 4096, 0.33, 5};
  SelectInputs in = select_inputs(c, dtype(), SelectRule::kCascadeCover, {0.33, 0.6});
  in.spec.want_cosines = false;
  in.spec.outlier_ratio = 8;
  EXPECT_TRUE(same_sets(select(*backend, dtype(), in, every_token_from(1030, c.n_tokens)),
                        select(*make_cpu_backend(DType::kF32), DType::kF32, in)));
}

TEST_P(EveryBackend, OneTokenOfAnySizeHasTheSetOfTheReference) {
  for (const SelectRule rule : {SelectRule::kGreedy, SelectRule::kCascadeCover}) {
    const SelectCase c{RowKind::kClusters, 300, 64, 0.5, 8};
    SelectInputs in = select_inputs(c, dtype(), rule, {0.5});
    for (size_t t = 0; t < static_cast<size_t>(c.n_tokens); ++t)
      for (size_t i = 0; i < 64; ++i)
        in.rows[t * 64 + i] = std::ldexp(in.rows[t * 64 + i], t % 7 == 0   ? 70
                                                              : t % 7 == 3 ? -70
                                                                           : 0);
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in, every_token_from(1, c.n_tokens)),
                          select(*reference, DType::kF32, in)));
  }
}

}  // namespace
}  // namespace sluice::impl::test
