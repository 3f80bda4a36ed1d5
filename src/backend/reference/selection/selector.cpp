// Representatives and owners by the letter of docs/algorithm.md, sections 1, 2 and 5: every
// decision is the largest exact cosine over the candidates that the rule names, less those which
// their coordinates in a basis rule out.

#include "backend/reference/selection/selector.h"

#include <cmath>

#include "backend/exact.h"
#include "backend/reference/common/kept.h"
#include "backend/reference/common/values.h"

namespace sluice::impl::reference::selection {
namespace {

// A unit row seen in the basis.
struct Coordinates {
  std::vector<double> along;  // (rank)
  double rest = 0;            // at least the norm of what is left
};

struct Nearest {
  int64_t token = -1;  // -1: there was no candidate
  double cosine = -1;  // signed
};

class ReferenceSelector final : public Selector {
 public:
  explicit ReferenceSelector(const SelectorSpec& spec)
      : Selector(spec), exempt_tokens_(spec.sinks, spec.outlier_ratio) {
    for (const double tau : spec_.taus) SLUICE_CHECK(tau >= 0 && tau < 1);
    reset();
  }

  void extend(const SelectArgs& args) override;
  int64_t bytes() const override { return rows_.bytes(); }

  void reset() override {
    rows_.clear();
    inverse_norms_.clear();
    coordinates_.clear();
    exempt_.clear();
    exempt_tokens_ = ExemptTokens(spec_.sinks, spec_.outlier_ratio);
    inherited_.assign(spec_.taus.size(), {});
    sets_.assign(spec_.taus.size(), {});
    for (size_t i = 0; i < sets_.size(); ++i) sets_[i].tau = spec_.taus[i];
    products_ = pairs_dropped_ = 0;
  }

 private:
  int64_t n_tokens() const { return rows_.size(); }
  bool exempt(int64_t t) const { return exempt_[static_cast<size_t>(t)]; }
  // What a basis that is not quite orthonormal and the sums in float64 may change.
  double slack() const {
    return 1.0001 * spec_.basis->deviation(DType::kF32) +
           static_cast<double>(spec_.d_model) * 0x1p-48;
  }

  void take_in(const SelectArgs& args);
  template <typename IsCandidate>
  Nearest nearest(int64_t t, int64_t end, bool absolute, double least,
                  const IsCandidate& is_candidate);
  Coordinates coordinates_of(int64_t t) const;
  bool surely_below(int64_t s, int64_t t, bool absolute, double limit) const;
  bool represents_itself(size_t set, int64_t t);
  void choose_set(size_t set, int64_t first);
  void choose_owner(size_t set, int64_t t);

  KeptRows rows_;                         // (n_tokens, d_model)
  std::vector<double> inverse_norms_;     // (n_tokens)
  std::vector<Coordinates> coordinates_;  // (n_tokens), with a basis
  std::vector<bool> exempt_;              // (n_tokens)
  ExemptTokens exempt_tokens_;
  std::vector<std::vector<uint8_t>> inherited_;  // per set, (n_tokens)
};

void ReferenceSelector::take_in(const SelectArgs& args) {
  SLUICE_CHECK(args.rows.row_elements() == spec_.d_model);
  SLUICE_CHECK(!exempt_tokens_.needs_norms() || args.residual.rows() == args.rows.rows());
  const int64_t n_before = n_tokens();
  rows_.append(args.rows);
  for (int64_t i = 0; i < args.rows.rows(); ++i) {
    inverse_norms_.push_back(inverse_norm(args.rows, i));
    double norm = 0;
    if (exempt_tokens_.needs_norms()) {
      const double inverse = inverse_norm(args.residual, i);
      norm = inverse > 0 ? 1 / inverse : 0;
    }
    exempt_.push_back(exempt_tokens_.next(norm));
    if (spec_.basis != nullptr) coordinates_.push_back(coordinates_of(n_before + i));
  }
  if (!inherits(spec_.rule)) return;
  SLUICE_CHECK(args.inherited.size() == sets_.size());
  for (size_t i = 0; i < sets_.size(); ++i) {
    const auto flags = args.inherited[i].flags(n_before, args.rows.rows());
    inherited_[i].insert(inherited_[i].end(), flags.begin(), flags.end());
  }
}

// |rest|^2 = |x|^2 - |g|^2 is a difference of float64 sums, and a basis that deviates from an
// orthonormal one by n may take n too much off.
Coordinates ReferenceSelector::coordinates_of(int64_t t) const {
  const SelectionBasis& basis = *spec_.basis;
  Coordinates out{std::vector<double>(static_cast<size_t>(basis.rank())), 0};
  const double inverse = inverse_norms_[static_cast<size_t>(t)];
  if (inverse == 0) return out;
  double squares = 0;
  for (int64_t i = 0; i < spec_.d_model; ++i) {
    const double x = unit_element(load(rows_.view(), t, i), inverse);
    squares += x * x;
    for (int64_t k = 0; k < basis.rank(); ++k)
      out.along[static_cast<size_t>(k)] +=
          x * double{basis.vectors()[static_cast<size_t>(k * spec_.d_model + i)]};
  }
  for (const double g : out.along) squares -= g * g;
  out.rest = std::sqrt(std::max(0.0, squares) + slack());
  return out;
}

// x_s . x_t = g_s . g_t + r_s . r_t, and |r_s . r_t| <= |r_s| |r_t|.
bool ReferenceSelector::surely_below(int64_t s, int64_t t, bool absolute, double limit) const {
  const Coordinates &a = coordinates_[static_cast<size_t>(s)],
                    &b = coordinates_[static_cast<size_t>(t)];
  double cosine = 0;
  for (size_t k = 0; k < a.along.size(); ++k) cosine += a.along[k] * b.along[k];
  return (absolute ? std::abs(cosine) : cosine) + a.rest * b.rest + slack() < limit;
}

// Of the tokens before `end` that are candidates, not exempt and not t itself, the one of largest
// (absolute) cosine to t; the first of equals. One below `least` may be left out.
template <typename IsCandidate>
Nearest ReferenceSelector::nearest(int64_t t, int64_t end, bool absolute, double least,
                                   const IsCandidate& is_candidate) {
  Nearest best;
  double largest = -INFINITY;
  for (int64_t s = 0; s < end; ++s) {
    if (s == t || exempt(s) || !is_candidate(s)) continue;
    if (spec_.basis != nullptr && surely_below(s, t, absolute, std::max(least, largest))) {
      ++pairs_dropped_;
      continue;
    }
    const double cosine = exact_cosine({rows_.view(), s, inverse_norms_[static_cast<size_t>(s)]},
                                       {rows_.view(), t, inverse_norms_[static_cast<size_t>(t)]});
    ++products_;
    const double size = absolute ? std::abs(cosine) : cosine;
    if (size <= largest) continue;
    largest = size;
    best = {s, cosine};
  }
  return best;
}

// The rules of section 2 for a token that is not exempt. Earlier tokens are decided, and for
// kCascadePaper all inherited ones before all others.
bool ReferenceSelector::represents_itself(size_t set, int64_t t) {
  const double threshold = threshold_of(spec_.taus[set]);
  const auto is_inherited = [&](int64_t s) {
    return inherits(spec_.rule) && inherited_[set][static_cast<size_t>(s)] != 0;
  };
  const auto is_rep = [&](int64_t s) { return sets_[set].in_set(s); };
  const auto is_kept = [&](int64_t s) { return is_inherited(s) && is_rep(s); };
  const auto is_addition = [&](int64_t s) { return !is_inherited(s) && is_rep(s); };
  const auto none_at_threshold = [&](int64_t end, bool absolute, const auto& is_candidate) {
    const Nearest found = nearest(t, end, absolute, threshold, is_candidate);
    return found.token < 0 || (absolute ? std::abs(found.cosine) : found.cosine) < threshold;
  };

  switch (spec_.rule) {
    case SelectRule::kIndependent:
      return none_at_threshold(t, true, [](int64_t) { return true; });
    case SelectRule::kGreedy:
      return none_at_threshold(t, false, is_rep);
    case SelectRule::kCascadePaper:
      if (is_inherited(t)) return none_at_threshold(t, true, is_inherited);
      return none_at_threshold(n_tokens(), true, is_kept);
    case SelectRule::kCascadeCausal:
      if (is_inherited(t)) return none_at_threshold(t, true, is_inherited);
      return none_at_threshold(t, true, is_kept);
    case SelectRule::kCascadeCover:
      if (is_inherited(t)) return none_at_threshold(t, false, is_kept);
      return none_at_threshold(t, false, is_kept) && none_at_threshold(t, false, is_addition);
    case SelectRule::kFixed:
      return is_inherited(t);
  }
  SLUICE_CHECK(!"unknown rule");
}

// Statuses of the tokens from `first` on: exempt, representative, or redundant for now.
void ReferenceSelector::choose_set(size_t index, int64_t first) {
  TokenSet& set = sets_[index];
  set.status.resize(static_cast<size_t>(n_tokens()), TokenStatus::kRedundant);
  const auto decide = [&](int64_t t) {
    TokenStatus& status = set.status[static_cast<size_t>(t)];
    if (exempt(t))
      status = TokenStatus::kExempt;
    else if (set.tau == 0 || represents_itself(index, t))
      status = TokenStatus::kRepresentative;
  };
  // Algorithm 1 of the paper has all inherited tokens decided before it looks at the others.
  const bool inherited_first = spec_.rule == SelectRule::kCascadePaper;
  const auto in_first_round = [&](int64_t t) {
    return !inherited_first || inherited_[index][static_cast<size_t>(t)] != 0;
  };
  for (int64_t t = first; t < n_tokens(); ++t)
    if (in_first_round(t)) decide(t);
  for (int64_t t = first; t < n_tokens(); ++t)
    if (!in_first_round(t)) decide(t);
}

void ReferenceSelector::choose_owner(size_t index, int64_t t) {
  TokenSet& set = sets_[index];
  const auto at = static_cast<size_t>(t);
  set.owner[at] = static_cast<int32_t>(t);
  double cosine = 1;
  if (!set.in_set(t)) {
    const bool earlier = spec_.owner == OwnerKind::kEarlier;
    const bool paper = spec_.owner == OwnerKind::kPaper;
    const Nearest owner = nearest(t, earlier ? t : n_tokens(), paper, -INFINITY,
                                  [&](int64_t s) { return set.in_set(s); });
    if (owner.token >= 0) set.owner[at] = static_cast<int32_t>(owner.token);
    if (owner.token < 0 || (!paper && owner.cosine < threshold_of(set.tau)))
      set.status[at] = TokenStatus::kUncovered;
    cosine = owner.cosine;
  }
  if (spec_.want_cosines) set.cosine[at] = static_cast<float>(cosine);
}

void ReferenceSelector::extend(const SelectArgs& args) {
  const int64_t first = n_tokens();
  const bool whole = spec_.rule == SelectRule::kCascadePaper || spec_.owner != OwnerKind::kEarlier;
  SLUICE_CHECK(first == 0 || !whole);
  take_in(args);
  for (size_t i = 0; i < sets_.size(); ++i) {
    TokenSet& set = sets_[i];
    choose_set(i, first);
    set.owner.resize(set.status.size());
    if (spec_.want_cosines) set.cosine.resize(set.status.size());
    for (int64_t t = first; t < n_tokens(); ++t) choose_owner(i, t);
    set.cluster.resize(set.status.size());
    set.number_clusters(first);
  }
}

}  // namespace

std::unique_ptr<Selector> make_selector(const SelectorSpec& spec) {
  return std::make_unique<ReferenceSelector>(spec);
}

}  // namespace sluice::impl::reference::selection
