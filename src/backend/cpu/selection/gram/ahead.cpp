// Passes over a whole sequence, for fates and owners that depend on later tokens too.

#include <algorithm>
#include <atomic>

#include "backend/cpu/selection/gram/selector.h"
#include "core/threads.h"

namespace sluice::impl::cpu::selection {

// Algorithm 1 of the paper, lines 6 to 10: tokens that are not inherited against all kept ones.
void GramSelector::check_against_kept(const Indices& tokens) {
  const auto waits = [&](int32_t index) {
    return std::any_of(live_sets_.begin(), live_sets_.end(),
                       [&](size_t set) { return !inherited(set, index); });
  };
  std::vector<Query> queries;
  for (size_t set = 0; set < sets_.size(); ++set) queries.push_back({mask(set, kPlainMask), true});
  Indices additions;
  for_blocks(tokens, waits, [&](const Indices& block) {
    candidates_.resize(block.size() * queries.size());
    for (Candidates& candidates : candidates_) candidates.ask_nothing();
    for (size_t row = 0; row < block.size(); ++row)
      for (const size_t set : live_sets_)
        if (!inherited(set, block[row]))
          candidates_[row * queries.size() + set].ask_threshold(threshold(set), true);
    scan(queries);
    Judge judge(rows_, spec_.d_model);
    for (size_t row = 0; row < block.size(); ++row) {
      bool is_addition = false;
      for (const size_t set : live_sets_) {
        if (inherited(set, block[row])) continue;
        if (judge.reaches(static_cast<int64_t>(row), threshold(set),
                          candidates_[row * queries.size() + set]))
          sets_[set].status[token(block[row])] = TokenStatus::kRedundant;
        else
          is_addition = true;
      }
      if (is_addition) additions.push_back(block[row]);
    }
    products_ += judge.n_products();
  });
  for_blocks(
      additions, [](int32_t) { return true; },
      [&](const Indices& block) {
        std::vector<int64_t> fresh;  // of another set they may be columns already
        auto next = static_cast<int32_t>(columns_.size());
        for (size_t row = 0; row < block.size(); ++row) {
          int32_t& column = column_of_[static_cast<size_t>(block[row])];
          if (column >= 0) continue;
          column = next++;
          fresh.push_back(static_cast<int64_t>(row));
        }
        columns_.append(rows_, fresh);
        for (const int32_t index : block)
          for (const size_t set : live_sets_)
            if (sets_[set].in_set(static_cast<int64_t>(token(index))))
              columns_.count_in_once(mask(set, kOwnerMask), column_of_[static_cast<size_t>(index)]);
      });
}

// Owners once all representatives are known.
void GramSelector::choose_owners(const Indices& tokens) {
  const auto is_owned = [&](size_t set, int32_t index) {
    return !sets_[set].in_set(static_cast<int64_t>(token(index)));
  };
  const auto picks = [&](int32_t index) {
    return std::any_of(live_sets_.begin(), live_sets_.end(),
                       [&](size_t set) { return is_owned(set, index); });
  };
  for_blocks(tokens, picks, [&](const Indices& block) {
    candidates_.resize(block.size() * owner_queries_.size());
    for (Candidates& candidates : candidates_) candidates.ask_nothing();
    for (size_t row = 0; row < block.size(); ++row)
      for (const size_t set : live_sets_)
        if (is_owned(set, block[row]))
          candidates_[row * owner_queries_.size() + set].ask_nearest(owner_queries_[set].absolute,
                                                                     least_owner(set));
    scan(owner_queries_);
    std::atomic<int64_t> n_products = 0;
    parallel_for(rows_.size(), 8, [&](int64_t begin, int64_t end) {
      Judge judge(rows_, spec_.d_model);
      for (int64_t row = begin; row < end; ++row) {
        const int32_t index = block[static_cast<size_t>(row)];
        for (const size_t set : live_sets_)
          if (is_owned(set, index))
            settle_owner(judge, set, row,
                         candidates_[static_cast<size_t>(row) * owner_queries_.size() + set]);
      }
      n_products += judge.n_products();
    });
    products_ += n_products;
  });
}

}  // namespace sluice::impl::cpu::selection
