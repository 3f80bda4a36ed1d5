// Selection with a basis (docs/algorithm.md, section 5) gives the sets of selection without, to the
// last bit of a cosine, whatever the basis.

#include <array>
#include <numeric>

#include "parity/basis_cases.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

const std::vector<double> kTaus = {0.3, 0.5, 0.8};

// Ranks from one to all; of the rows themselves, or useless.
std::vector<std::shared_ptr<const SelectionBasis>> bases_for(const SelectInputs& in,
                                                             uint32_t seed) {
  const int64_t d = in.spec.d_model;
  return {random_basis(1, d, seed), basis_of(in.rows, (d + 3) / 4, d, seed),
          random_basis((d + 1) / 2, d, seed), basis_of(in.rows, d, d, seed)};
}

TEST_P(EveryImplementation, ABasisChangesNoSet) {
  std::vector<std::pair<SelectCase, SelectRule>> cases;
  for (const RowKind kind : kRowKinds)
    for (const int64_t n_tokens : {1, 7, 40})
      for (const int64_t d_model : {1, 3, 37})
        for (const SelectRule rule : kAllRules) {
          const auto seed = static_cast<uint32_t>(901 + cases.size());
          cases.emplace_back(SelectCase{kind, n_tokens, d_model, kTaus[seed % kTaus.size()], seed},
                             rule);
        }
  for (const auto& [c, rule] : thinned(cases, 65)) {
    SCOPED_TRACE(testing::PrintToString(c) + ", rule " + std::to_string(static_cast<int>(rule)));
    SelectInputs in = select_inputs(c, dtype(), rule, kTaus);
    in.spec.sinks = c.seed % 3;
    in.spec.outlier_ratio = c.seed % 4 == 0 ? 1.1 : 0;
    in.spec.owner = static_cast<OwnerKind>(c.seed / 7 % 3);  // rules come round every six
    // Tokens of one pass are compared at full width; those of earlier ones are what a basis
    // is for.
    const bool cut =
        c.n_tokens > 1 && in.spec.owner == OwnerKind::kEarlier && rule != SelectRule::kCascadePaper;
    const std::vector<int64_t> cuts =
        cut ? std::vector<int64_t>{c.n_tokens / 3, c.n_tokens / 3 + 1} : std::vector<int64_t>{};
    const auto plain = select(*backend, dtype(), in);
    in.spec.basis_use = BasisUse::kAlways;
    for (const auto& basis : thinned(bases_for(in, c.seed), 3)) {
      in.spec.basis = basis;
      ASSERT_TRUE(same_sets(select(*backend, dtype(), in, cuts), plain))
          << "rank " << basis->rank();
    }
  }
}

// Several passes, and as many columns as it takes for a basis to be tried.
TEST_P(EveryBackend, ABasisChangesNoLargeSet) {
  if (kSanitized && dtype() == DType::kBF16)
    GTEST_SKIP() << "as long again under a sanitizer; small sets run there";
  const SelectCase cases[] = {
      {RowKind::kRandom, 300, 64, 0.8, 1},         {RowKind::kClusters, 900, 64, 0.5, 2},
      {RowKind::kChain, 400, 64, 0.3, 3},          {RowKind::kDuplicates, 513, 64, 0.3, 5},
      {RowKind::kLattice, 600, 64, 0.5, 6},        {RowKind::kNearThreshold, 300, 64, 0.3, 7},
      {RowKind::kNearThreshold, 320, 193, 0.5, 8}, {RowKind::kClusters, 300, 700, 0.5, 12}};
  for (const auto& [c, rule] : sampled(thinned(combinations(cases, kAllRules), 20), 5)) {
    const int64_t d = c.d_model;
    const auto rows = select_rows(c, dtype());
    const std::array bases = {random_basis(4, d, c.seed), basis_of(rows, d / 8, d, c.seed),
                              basis_of(rows, d / 2, d, c.seed)};
    SCOPED_TRACE(testing::PrintToString(c) + ", rule " + std::to_string(static_cast<int>(rule)));
    SelectInputs in = select_inputs(c, dtype(), rule, {c.tau, 0.6});
    in.spec.sinks = c.seed % 2 == 0 ? 4 : 0;
    const bool cut = rule != SelectRule::kCascadePaper && c.seed % 2 == 0;
    if (!cut) in.spec.owner = static_cast<OwnerKind>((c.seed + static_cast<uint32_t>(rule)) % 3);
    const std::vector<int64_t> cuts =
        cut ? std::vector<int64_t>{c.n_tokens / 3, c.n_tokens / 3 + 1} : std::vector<int64_t>{};
    const auto plain = select(*backend, dtype(), in);
    const std::array uses = {BasisUse::kWherePays, BasisUse::kAlways};
    for (const auto& [basis, use] : thinned(combinations(bases, uses), 5)) {
      in.spec.basis = basis;
      in.spec.basis_use = use;
      ASSERT_TRUE(same_sets(select(*backend, dtype(), in, cuts), plain))
          << "rank " << basis->rank();
    }
  }
}

// The deviation from orthonormal vectors is part of the bound: rows along the vectors' sum, whose
// coordinates a basis that is too short or too long gets wrong, right at the threshold.
TEST_P(EveryImplementation, ABasisThatIsNotQuiteOrthonormalChangesNoSet) {
  std::vector<uint32_t> seeds(40);
  std::iota(seeds.begin(), seeds.end(), 1);
  const std::array scales = {0.99992f, 1.00008f};
  for (const auto& [scale, seed] : thinned(combinations(scales, seeds), 13)) {
    const SelectCase c{RowKind::kNearThreshold, 60, 16, kTaus[seed % 3], seed};
    const auto rule = seed % 2 == 0 ? SelectRule::kCascadeCover : SelectRule::kCascadeCausal;
    SelectInputs in = select_inputs(c, dtype(), rule, {c.tau});
    const auto plain = select(*backend, dtype(), in);
    const auto exact = basis_of(in.rows, 5 + seed % 12, 16, seed);
    std::vector<float> vectors(exact->vectors().begin(), exact->vectors().end());
    for (float& x : vectors) x *= scale;
    for (size_t i = 0; i < 16; ++i) vectors[i] += 1e-4f * vectors[16 + i];
    in.spec.basis = std::make_shared<SelectionBasis>(exact->rank(), 16, vectors);
    in.spec.basis_use = BasisUse::kAlways;
    ASSERT_TRUE(same_sets(select(*backend, dtype(), in), plain)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::impl::test
