// Rows that are hard to select from, a call of a selector as data, and the comparison of sets.

#pragma once

#include <algorithm>

#include "backend/exact.h"
#include "parity/backends.h"
#include "select/rules.h"

namespace sluice::impl::test {

enum class RowKind : uint8_t {
  kRandom,
  kClusters,       // few directions with a little noise
  kChain,          // equal steps of angle in a plane: each is near the one before, not to the first
  kDuplicates,     // few rows, also doubled, halved, negated and zero
  kLattice,        // four coordinates of +-1: cosines in quarters, exact ties, exactly at tau 0.5
  kNearThreshold,  // cosines to an earlier row pulled to the threshold, at either side of it
};
constexpr RowKind kRowKinds[] = {RowKind::kRandom,     RowKind::kClusters, RowKind::kChain,
                                 RowKind::kDuplicates, RowKind::kLattice,  RowKind::kNearThreshold};
constexpr const char* kRowKindNames[] = {"random",     "clusters", "chain",
                                         "duplicates", "lattice",  "near threshold"};

struct SelectCase {
  RowKind kind = RowKind::kRandom;
  int64_t n_tokens = 0, d_model = 0;
  double tau = 0.3;  // whose threshold kChain and kNearThreshold aim at
  uint32_t seed = 1;
};

inline void PrintTo(const SelectCase& c, std::ostream* out) {
  *out << kRowKindNames[static_cast<size_t>(c.kind)] << " rows, " << c.n_tokens << " tokens of "
       << c.d_model << ", tau " << c.tau << ", seed " << c.seed;
}

inline double cosine_of(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

// Makes `row` a mixture of `target` and itself at the threshold, then moves single elements by one
// unit in the last place of dtype for as long as that brings the cosine nearer to it.
inline void pull_to_threshold(std::span<float> row, std::span<const float> target, DType dtype,
                              double threshold) {
  std::vector<double> rest(row.begin(), row.end());
  double along = 0, size = 0, squares = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    along += double{row[i]} * target[i];
    size += double{target[i]} * target[i];
  }
  if (size == 0) return;
  for (size_t i = 0; i < row.size(); ++i) {
    rest[i] -= along / size * target[i];
    squares += rest[i] * rest[i];
  }
  if (squares < 1e-12 * size) return;  // one dimension has no such mixture
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = rounded(
        dtype, static_cast<float>(threshold / std::sqrt(size) * target[i] +
                                  std::sqrt((1 - threshold * threshold) / squares) * rest[i]));
  const double step = dtype == DType::kBF16 ? 0x1p-7 : 0x1p-23;
  for (size_t i = 0; i < row.size(); ++i)
    for (const double sign : {-1.0, 1.0}) {
      const float before = row[i];
      const double error = std::abs(cosine_of(row, target) - threshold);
      row[i] = rounded(dtype, static_cast<float>(before * (1 + sign * step)));
      if (std::abs(cosine_of(row, target) - threshold) >= error) row[i] = before;
    }
}

// (n_tokens, d_model), as dtype holds them.
inline std::vector<float> select_rows(const SelectCase& c, DType dtype) {
  std::mt19937 random(c.seed * 7919 + static_cast<uint32_t>(c.kind));
  std::vector<float> rows = random_values(c.n_tokens * c.d_model, c.seed, dtype);
  const auto d = static_cast<size_t>(c.d_model);
  const auto row = [&](int64_t t) {
    return std::span(rows).subspan(static_cast<size_t>(t) * d, d);
  };
  const double threshold = 1 - c.tau * c.tau;
  // A little more than the threshold's angle or a little less, by seed.
  const double angle = std::acos(threshold) * (c.seed % 2 == 0 ? 0.97 : 0.51);
  const int64_t n_kinds = 1 + c.n_tokens / 6;
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    const auto x = row(t);
    const auto pattern = row(static_cast<int64_t>(random()) % n_kinds);
    const bool first_of_kind = t < n_kinds;
    const auto choice = random() % 16;
    switch (c.kind) {
      case RowKind::kRandom:
        break;
      case RowKind::kClusters:
        if (!first_of_kind)
          for (size_t i = 0; i < d; ++i) x[i] = rounded(dtype, pattern[i] + 0.35f * x[i]);
        break;
      case RowKind::kChain:
        std::fill(x.begin(), x.end(), 0.0f);
        x[0] = rounded(dtype, static_cast<float>(std::cos(static_cast<double>(t) * angle)));
        if (d > 1)
          x[1] = rounded(dtype, static_cast<float>(std::sin(static_cast<double>(t) * angle)));
        break;
      case RowKind::kDuplicates: {
        const float factors[] = {1, 1, 1, 1, 1, 1, 2, 2, 0.5f, 4, -1, -1, -2, -0.5f, 0, 1};
        if (first_of_kind) break;
        for (size_t i = 0; i < d; ++i) x[i] = pattern[i] * factors[choice];
        break;
      }
      case RowKind::kLattice:
        std::fill(x.begin(), x.end(), 0.0f);
        for (int n = 0; n < 4; ++n)
          x[random() % std::min<size_t>(d, 7)] = choice == 0 && n % 2 == 0 ? -1.0f : 1.0f;
        break;
      case RowKind::kNearThreshold:
        for (size_t i = 0; i < d; ++i) x[i] = std::ldexp(x[i], -static_cast<int>(i % 8));
        if (t > 0) pull_to_threshold(x, row(static_cast<int64_t>(random()) % t), dtype, threshold);
        break;
    }
  }
  return rows;
}

// A whole sequence to select from, and how.
struct SelectInputs {
  SelectorSpec spec;
  int64_t n_tokens = 0;
  std::vector<float> rows;                      // (n_tokens, d_model)
  std::vector<float> residual;                  // (n_tokens, d_model); empty: the rows
  std::vector<std::vector<uint8_t>> inherited;  // per tau, (n_tokens)
};

constexpr auto kAllRules = kSelectRules;
constexpr SelectRule kCausalRules[] = {SelectRule::kIndependent, SelectRule::kGreedy,
                                       SelectRule::kCascadeCausal, SelectRule::kCascadeCover,
                                       SelectRule::kFixed};
static_assert(std::size(kCausalRules) == std::size(kAllRules) - 1,
              "of all rules cascade-paper alone looks ahead");

// Flags of a set that a layer before might have had: a random share of the tokens.
inline std::vector<uint8_t> random_flags(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  const auto share = random() % 11;  // of ten: from none to all
  std::vector<uint8_t> flags(static_cast<size_t>(n));
  for (uint8_t& flag : flags) flag = random() % 10 < share ? 1 : 0;
  return flags;
}

inline SelectInputs select_inputs(const SelectCase& c, DType dtype, SelectRule rule,
                                  std::vector<double> taus) {
  SelectInputs in;
  in.n_tokens = c.n_tokens;
  in.rows = select_rows(c, dtype);
  if (inherits(rule))
    for (size_t i = 0; i < taus.size(); ++i)
      in.inherited.push_back(random_flags(c.n_tokens, c.seed + 31 * static_cast<uint32_t>(i)));
  in.spec = {.rule = rule,
             .owner = OwnerKind::kEarlier,
             .taus = std::move(taus),
             .d_model = c.d_model,
             .sinks = 0,
             .outlier_ratio = 0,
             .want_cosines = true};
  return in;
}

// Tokens [first, last) of a sequence as one call.
inline void extend(Selector& selector, Backend& backend, DType dtype, const SelectInputs& in,
                   int64_t first, int64_t last) {
  const int64_t n = last - first, d = in.spec.d_model;
  const auto part = [&](const std::vector<float>& all) {
    return std::vector<float>(all.begin() + first * d, all.begin() + last * d);
  };
  // Rows of whole 16-byte pieces where they can be, as models have them.
  const DeviceTensor rows(backend, dtype, {n, d}, part(in.rows), d % 8 == 0 ? 8 : 3);
  const DeviceTensor residual(backend, DType::kF32, {n, d},
                              part(in.residual.empty() ? in.rows : in.residual),
                              d % 8 == 0 ? 4 : 1);
  SelectArgs args{.rows = rows.view(), .residual = residual.view(), .inherited = {}};
  for (const auto& flags : in.inherited)
    args.inherited.push_back(
        std::span(flags).subspan(static_cast<size_t>(first), static_cast<size_t>(n)));
  selector.extend(args);
}

// `cuts`: where a pass ends and the next begins, ascending.
inline std::unique_ptr<Selector> extended(Backend& backend, DType dtype, const SelectInputs& in,
                                          std::vector<int64_t> cuts = {}) {
  auto selector = backend.make_selector(in.spec);
  cuts.push_back(in.n_tokens);
  int64_t first = 0;
  for (const int64_t last : cuts) {
    extend(*selector, backend, dtype, in, first, last);
    first = last;
  }
  return selector;
}
inline std::vector<TokenSet> select(Backend& backend, DType dtype, const SelectInputs& in,
                                    std::vector<int64_t> cuts = {}) {
  return extended(backend, dtype, in, std::move(cuts))->sets();
}

// Cosines of all pairs, (n_tokens, n_tokens), by the sum that decides.
class Gram {
 public:
  Gram(const std::vector<float>& rows, int64_t n_tokens, int64_t d_model) : n_(n_tokens) {
    const ConstTensor x(rows.data(), DType::kF32, {n_tokens, d_model});
    std::vector<double> inverse;
    for (int64_t t = 0; t < n_; ++t) inverse.push_back(inverse_norm(x, t));
    for (int64_t s = 0; s < n_; ++s)
      for (int64_t t = 0; t < n_; ++t)
        cosines_.push_back(exact_cosine({x, s, inverse[static_cast<size_t>(s)]},
                                        {x, t, inverse[static_cast<size_t>(t)]}));
  }
  double operator()(int64_t s, int64_t t) const {
    return cosines_[static_cast<size_t>(s * n_ + t)];
  }

 private:
  int64_t n_;
  std::vector<double> cosines_;
};

inline const char* status_name(TokenStatus status) {
  constexpr const char* kNames[] = {"redundant", "representative", "exempt", "uncovered"};
  return kNames[static_cast<size_t>(status)];
}

// Equal in everything but cosines, which may differ in their last bit; the first n tokens.
inline testing::AssertionResult same_start(const TokenSet& got, const TokenSet& expected,
                                           int64_t n_tokens) {
  const auto n = static_cast<size_t>(n_tokens);
  for (const TokenSet* set : {&got, &expected})
    if (set->status.size() < n || set->owner.size() < n || set->cluster.size() < n)
      return testing::AssertionFailure() << "a set of fewer than " << n << " tokens";
  if (got.cosine.size() != got.status.size() * (expected.cosine.empty() ? 0 : 1))
    return testing::AssertionFailure() << got.cosine.size() << " cosines";
  for (size_t t = 0; t < n; ++t) {
    const bool same_cosine = expected.cosine.empty() || got.cosine[t] == expected.cosine[t];
    if (got.status[t] != expected.status[t] || got.owner[t] != expected.owner[t] ||
        got.cluster[t] != expected.cluster[t] || !same_cosine)
      return testing::AssertionFailure()
             << "tau " << got.tau << ", first different token: " << t << " is "
             << status_name(got.status[t]) << " of " << got.owner[t] << " in cluster "
             << got.cluster[t] << ", expected " << status_name(expected.status[t]) << " of "
             << expected.owner[t] << " in " << expected.cluster[t]
             << (same_cosine ? "" : "; cosines differ");
  }
  return testing::AssertionSuccess();
}

inline testing::AssertionResult same_sets(const std::vector<TokenSet>& got,
                                          const std::vector<TokenSet>& expected) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << got.size() << " sets";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].tau != expected[i].tau || got[i].n_tokens() != expected[i].n_tokens() ||
        got[i].n_clusters != expected[i].n_clusters)
      return testing::AssertionFailure() << "set " << i << " has " << got[i].n_clusters
                                         << " clusters, expected " << expected[i].n_clusters;
    const auto same = same_start(got[i], expected[i], expected[i].n_tokens());
    if (!same) return same;
  }
  return testing::AssertionSuccess();
}

}  // namespace sluice::impl::test
