#include "eval/analyze/profile_sets.h"

#include <algorithm>

#include "select/counters.h"
#include "select/inherit.h"
#include "select/rules.h"

namespace sluice::impl {
namespace {

double part_of(int64_t part, int64_t whole) {
  return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void count_set(const SetCounts& counts, SetFigures& to) {
  const auto& [set, independent, before, rule, products] = counts;
  const auto add = [](RunningMean& figure, int64_t x) { figure.add(static_cast<double>(x)); };
  add(to.n_reps, n_reps(set));
  add(to.rep_pairs, n_reps(set) * n_reps(set));
  if (before != nullptr) {
    to.jaccard_prev.add(jaccard(*before, set));
    add(to.intersection_prev, intersection(*before, set));
    const Turnover change = turnover(*before, set);
    add(to.n_inherited, change.n_inherited);
    add(to.additions, change.additions);
    add(to.removals, change.removals);
    to.turnover.add(change.rate());
  }
  const int64_t common = intersection(set, independent);
  to.recall.add(part_of(common, n_reps(independent)));
  to.precision.add(part_of(common, n_reps(set)));
  to.jaccard.add(jaccard(set, independent));
  add(to.missed, n_reps(independent) - common);
  to.uncovered.add(uncovered_share(set));
  const OwnerCosine cosine = owner_cosine(set);
  to.owner_cosine_min.add(cosine.least);
  to.owner_cosine_mean.add(cosine.mean);
  add(to.products_paper, products_by_the_paper(rule, set, before));
  add(to.products_computed, products);
}

ProfileSets::ProfileSets(Backend& backend, ProfileSetsSpec spec)
    : backend_(backend),
      spec_(std::move(spec)),
      kinds_(set_kinds(spec_.rules)),
      leading_(leading_set(spec_.rules)),
      random_(spec_.seed) {}

void ProfileSets::begin_window(int64_t index) {
  now_.clear();
  // Far from the seeds of other sets, which are neighbours.
  random_.seed(spec_.seed + 0x9e3779b97f4a7c15U * static_cast<uint64_t>(index));
}

const std::vector<TokenSet>& ProfileSets::add_layer(const ConstTensor& rows,
                                                    const ConstTensor& residual,
                                                    std::vector<SetFigures>& figures) {
  before_ = std::move(now_);
  now_.clear();
  figures.resize(kinds_.size());
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    Decided decided = decide(kind, rows, residual);
    now_.push_back(std::move(decided.set));
    count_set({.set = now_[kind],
               .independent = now_[kIndependentSet],
               .before = before_.empty() ? nullptr : &before_[kind],
               .rule = decided.rule,
               .products = decided.products},
              figures[kind]);
  }
  return now_;
}

ProfileSets::Decided ProfileSets::decide(size_t kind, const ConstTensor& rows,
                                         const ConstTensor& residual) {
  const SelectRule rule = kinds_[kind].rule;
  if (kinds_[kind].is_random) return run(rule, rows, residual, random_flags(now_[leading_]));
  if (!inherits(rule)) return run(rule, rows, residual, {});
  if (!before_.empty()) return run(rule, rows, residual, membership(before_[kind], 0, rows.rows()));
  if (rule == SelectRule::kFixed)  // starts as the leading set does
    return run(rule, rows, residual, membership(now_[leading_], 0, rows.rows()));
  return run(first_rule(rule), rows, residual, {});
}

ProfileSets::Decided ProfileSets::run(SelectRule rule, const ConstTensor& rows,
                                      const ConstTensor& residual,
                                      const std::vector<uint8_t>& inherited) const {
  const auto selector = backend_.make_selector({.rule = rule,
                                                .owner = spec_.owner,
                                                .taus = {spec_.tau},
                                                .d_model = spec_.row_width,
                                                .sinks = spec_.sinks,
                                                .outlier_ratio = spec_.outlier_ratio,
                                                .want_cosines = true});
  SelectArgs args{.rows = rows, .residual = residual, .inherited = {}};
  if (!inherited.empty()) args.inherited.emplace_back(inherited);
  selector->extend(args);
  return {rule, selector->sets()[0], selector->products()};
}

// As many tokens as `like` has, exempt ones aside, and among them the first that can be chosen: it
// has nobody before it and would otherwise be without an owner.
std::vector<uint8_t> ProfileSets::random_flags(const TokenSet& like) {
  std::vector<size_t> tokens;
  int64_t n_wanted = 0;
  for (size_t t = 0; t < like.status.size(); ++t) {
    if (like.status[t] != TokenStatus::kExempt) tokens.push_back(t);
    n_wanted += like.status[t] == TokenStatus::kRepresentative ? 1 : 0;
  }
  std::vector<uint8_t> flags(like.status.size());
  // Fisher-Yates by hand: std::shuffle's order differs from library to library.
  for (size_t i = 0; i < static_cast<size_t>(n_wanted); ++i) {
    if (i > 0) std::swap(tokens[i], tokens[i + random_() % (tokens.size() - i)]);
    flags[tokens[i]] = 1;
  }
  return flags;
}

}  // namespace sluice::impl
