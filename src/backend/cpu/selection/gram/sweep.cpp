// The sweep: tokens whose fate and owner depend on earlier ones alone.

#include <algorithm>

#include "backend/cpu/selection/gram/selector.h"

namespace sluice::impl::cpu::selection {

// What decides a token: the nearest owner where that is looked for anyway.
Candidates& GramSelector::deciding(int64_t row, size_t set, int32_t index) {
  const Mask kind = deciding_mask(rule_, inherited(set, index));
  const size_t slot = kind == kOwnerMask && looks_ahead() ? size_t{kPlainMask} : size_t{kind};
  return candidates_[static_cast<size_t>(row) * sweep_queries_.size() + mask(set, Mask(slot))];
}

void GramSelector::ask_sweep(const Indices& block) {
  candidates_.resize(block.size() * sweep_queries_.size());
  for (Candidates& candidates : candidates_) candidates.ask_nothing();
  for (size_t row = 0; row < block.size(); ++row)
    for (const size_t set : live_sets_) {
      if (!swept(set, block[row])) continue;
      const bool fixed = rule_ == SelectRule::kFixed;
      if (!fixed)
        deciding(static_cast<int64_t>(row), set, block[row])
            .ask_threshold(threshold(set), traits(rule_).magnitudes);
      if (!looks_ahead() && !(fixed && inherited(set, block[row])))
        candidates_[row * sweep_queries_.size() + mask(set, kOwnerMask)].ask_nearest(
            false, least_owner(set));
    }
}

// Whether later rows may have to be compared with this one.
bool GramSelector::may_count(int64_t row, int32_t index) {
  return std::any_of(live_sets_.begin(), live_sets_.end(), [&](size_t set) {
    if (!swept(set, index)) return false;
    const bool is_inherited = inherited(set, index);
    const bool may_join = rule_ == SelectRule::kFixed
                              ? is_inherited
                              : deciding(row, set, index).lower < threshold(set);
    const auto masks = masks_of(rule_, is_inherited, may_join);
    return std::find(masks.begin(), masks.end(), true) != masks.end();
  });
}

void GramSelector::sweep_block(const Indices& block) {
  ask_sweep(block);
  const bool any_asks = std::any_of(candidates_.begin(), candidates_.end(),
                                    [](const Candidates& c) { return c.asks(); });
  if (any_asks) scan(sweep_queries_);

  block_columns_.clear();
  block_column_.assign(block.size(), -1);
  std::vector<int64_t> may_join;
  for (int64_t row = 0; row < rows_.size(); ++row) {
    if (!may_count(row, block[static_cast<size_t>(row)])) continue;
    block_column_[static_cast<size_t>(row)] = static_cast<int64_t>(may_join.size());
    may_join.push_back(row);
  }
  block_columns_.append(rows_, may_join);

  const Scan own{&kernel_, spec_.d_model, &rows_, &block_columns_, sweep_queries_};
  if (any_asks) products_ += own.multiply(block_products_);
  Judge judge(rows_, spec_.d_model);
  for (int64_t row = 0; row < rows_.size(); ++row) {
    if (any_asks) own.collect_row(block_products_, row, candidates_);
    decide(judge, row, block[static_cast<size_t>(row)]);
  }
  products_ += judge.n_products();
  keep_columns(block);
}

void GramSelector::decide(Judge& judge, int64_t row, int32_t index) {
  for (const size_t set : live_sets_) {
    if (!swept(set, index)) continue;
    const bool is_inherited = inherited(set, index);
    const bool in_set = rule_ == SelectRule::kFixed
                            ? is_inherited
                            : !judge.reaches(row, threshold(set), deciding(row, set, index));
    const auto masks = masks_of(rule_, is_inherited, in_set);
    for (size_t kind = 0; kind < kMasks; ++kind)
      if (masks[kind])
        block_columns_.count_in(mask(set, Mask(kind)), block_column_[static_cast<size_t>(row)]);
    if (in_set) continue;
    sets_[set].status[token(index)] = TokenStatus::kRedundant;
    if (!looks_ahead())
      settle_owner(
          judge, set, row,
          candidates_[static_cast<size_t>(row) * sweep_queries_.size() + mask(set, kOwnerMask)]);
  }
}

void GramSelector::keep_columns(const Indices& block) {
  const size_t n_masks = kMasks * sets_.size();
  std::vector<int64_t> kept;
  for (int64_t row = 0; row < rows_.size(); ++row) {
    const int64_t from = block_column_[static_cast<size_t>(row)];
    bool counts = false;
    for (size_t i = 0; i < n_masks && from >= 0; ++i) counts |= block_columns_.counts(i, from);
    if (counts) kept.push_back(row);
  }
  int64_t column = columns_.append(rows_, kept);
  for (const int64_t row : kept) {
    for (size_t i = 0; i < n_masks; ++i) {
      if (!block_columns_.counts(i, block_column_[static_cast<size_t>(row)])) continue;
      if (i % kMasks == kOwnerMask && traits(rule_).may_crowd)
        columns_.count_in_once(i, column);
      else
        columns_.count_in(i, column);
    }
    column_of_[static_cast<size_t>(block[static_cast<size_t>(row)])] =
        static_cast<int32_t>(column++);
  }
}

}  // namespace sluice::impl::cpu::selection
