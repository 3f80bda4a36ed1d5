// Selection that starts from the sums of squares of the norm before.

#include <array>

#include "parity/cuda_select_cases.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// The residual stream of some tokens, the rows that a norm makes of it, and what it hands on.
struct NormedTokens {
  NormedTokens(Backend& backend, DType dtype, const std::vector<float>& values, int64_t d)
      : n(static_cast<int64_t>(values.size()) / d),
        residual(backend, DType::kF32, {n, d}, values),
        rows(unwritten(backend, dtype, {n, d})),
        squares(unwritten(backend, DType::kF32, {n, 4})) {
    backend.norm({.kind = NormKind::kRms,
                  .epsilon = 1e-5f,
                  .x = residual.view(),
                  .weight = {},
                  .bias = {},
                  .out = rows.view(),
                  .squares = squares.view()});
  }
  int64_t n;
  DeviceTensor residual, rows, squares;
};

enum class From : uint8_t { kNothing, kSquares };

std::vector<TokenSet> select(Backend& backend, const SelectInputs& in, const NormedTokens& tokens,
                             bool of_residual, From from, std::vector<int64_t> cuts) {
  const auto selector = backend.make_selector(in.spec);
  cuts.push_back(tokens.n);
  int64_t begin = 0;
  for (const int64_t end : cuts) {
    const int64_t n = end - begin;
    const auto part = [&](const DeviceTensor& of) { return of.view().rows_from(begin, n); };
    SelectArgs args{.rows = part(of_residual ? tokens.residual : tokens.rows),
                    .residual = part(tokens.residual),
                    .inherited = {}};
    for (const auto& flags : in.inherited)
      args.inherited.push_back(
          std::span(flags).subspan(static_cast<size_t>(begin), static_cast<size_t>(n)));
    if (from == From::kSquares) {
      const ConstTensor squares = part(tokens.squares);
      args.row_squares = of_residual ? squares_of_x(squares) : squares_of_out(squares);
      args.residual_squares = squares_of_x(squares);
    }
    selector->extend(args);
    begin = end;
  }
  return selector->sets();
}

// Few tokens and many, widths that are read in whole pieces and one that is not, whose squares are
// left alone; rows near the threshold, with ties and of zeros; and outliers, with and without a
// limit for them.
TEST_P(EveryBackend, SquaresOfTheNormBeforeChangeNoSet) {
  const std::array<std::pair<int64_t, int64_t>, 3> sizes = {{{500, 64}, {700, 20}, {2600, 32}}};
  const std::array kinds = {RowKind::kClusters, RowKind::kDuplicates, RowKind::kLattice,
                            RowKind::kNearThreshold};
  const std::array rules = {SelectRule::kGreedy, SelectRule::kCascadeCover,
                            SelectRule::kCascadeCausal};
  for (const auto& [size, kind, rule, of_residual] :
       thinned(combinations(sizes, kinds, rules, std::array{false, true}), 25)) {
    const auto [n_tokens, d] = size;
    if (n_tokens > 1000 && (kind == RowKind::kLattice || kind == RowKind::kDuplicates)) continue;
    const SelectCase c{kind, n_tokens, d, 0.5, 3};
    SelectInputs in = plain_inputs(c, DType::kF32, rule, {0.5, 0.3});
    SCOPED_TRACE(testing::PrintToString(c) + ", rule " + std::to_string(static_cast<int>(rule)) +
                 ", residual " + std::to_string(of_residual));
    in.spec.outlier_ratio = of_residual && kind == RowKind::kLattice ? 0 : 8;
    for (int64_t t = 300; t < n_tokens; t += 97)
      for (int64_t i = 0; i < d; ++i) in.rows[static_cast<size_t>(t * d + i)] *= 16;
    const NormedTokens tokens(*backend, dtype(), in.rows, d);
    in.residual = in.rows;
    if (!of_residual) in.rows = tokens.rows.values();
    const auto expected = expected_sets(in);
    const std::array<std::vector<int64_t>, 3> all_cuts = {{{}, {n_tokens / 2}, {3, 4, 290}}};
    const std::array both = {From::kNothing, From::kSquares};
    for (const auto& [cuts, from] : thinned(combinations(all_cuts, both), 5)) {
      SCOPED_TRACE(testing::Message()
                   << cuts.size() << " cuts, squares " << (from == From::kSquares));
      EXPECT_TRUE(same_sets(select(*backend, in, tokens, of_residual, from, cuts), expected));
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
