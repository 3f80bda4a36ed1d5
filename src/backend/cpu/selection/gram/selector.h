// The selector of this backend: docs/algorithm.md sections 1, 2 and 5, with the reference's very
// sets.
//
// One sweep over the tokens, in blocks. A block's rows are multiplied with the columns kept from
// all blocks before (selection/gram/scan.h); rows that may yet be representatives become columns of
// the block's own, and one pass in position order over those products decides. What later tokens
// must be compared with is then kept. Rules and owners that look ahead add passes over the whole
// sequence.

#pragma once

#include <cmath>
#include <functional>

#include "backend/cpu/selection/gram/rules.h"
#include "backend/cpu/selection/gram/scan.h"
#include "backend/exact.h"

namespace sluice::impl::cpu::selection {

class GramSelector final : public Selector {
 public:
  explicit GramSelector(const SelectorSpec& spec);

  void extend(const SelectArgs& args) override;
  int64_t bytes() const override {
    return columns_.bytes() + (subspace_ != nullptr ? subspace_->bytes() : 0);
  }
  void reset() override;

 private:
  using Indices = std::vector<int32_t>;  // of tokens, counted from the pass's first

  static size_t mask(size_t set, Mask kind) { return set * kMasks + kind; }
  Columns no_columns() const { return {kernel_, spec_.d_model, kMasks * spec_.taus.size()}; }
  bool looks_ahead() const {
    return rule_ == SelectRule::kCascadePaper || spec_.owner != OwnerKind::kEarlier;
  }
  bool inherited(size_t set, int32_t index) const {
    return inherits(rule_) && inherited_[set][static_cast<size_t>(index)] != 0;
  }
  double threshold(size_t set) const { return threshold_of(spec_.taus[set]); }
  // No owner is further away.
  double least_owner(size_t set) const { return traits(rule_).covers ? threshold(set) : -INFINITY; }
  size_t token(int32_t index) const { return first_ + static_cast<size_t>(index); }
  // Whether the sweep decides a token of a set: not yet where it waits for later ones.
  bool swept(size_t set, int32_t index) const {
    return rule_ != SelectRule::kCascadePaper || inherited(set, index);
  }

  // selection/selector.cpp: a pass, and what is common to both kinds of work.
  Indices begin_pass(const SelectArgs& args);
  using Picks = std::function<bool(int32_t index)>;
  using Visit = std::function<void(const Indices& block)>;
  void for_blocks(const Indices& tokens, const Picks& picks, const Visit& visit);
  void scan(std::span<const Query> queries);
  bool take_subspace(const Scan& full);
  bool pays(const Pairs& sample) const;
  void settle_owner(Judge& judge, size_t set, int64_t row, Candidates& candidates);

  // selection/gram/sweep.cpp: what earlier tokens decide.
  void sweep_block(const Indices& block);
  void ask_sweep(const Indices& block);
  Candidates& deciding(int64_t row, size_t set, int32_t index);
  bool may_count(int64_t row, int32_t index);
  void decide(Judge& judge, int64_t row, int32_t index);
  void keep_columns(const Indices& block);

  // selection/gram/ahead.cpp: what the whole sequence decides.
  void check_against_kept(const Indices& tokens);
  void choose_owners(const Indices& tokens);

  SelectRule rule_;
  const gemm::Kernel& kernel_;
  std::vector<size_t> live_sets_;  // those of tau > 0
  std::vector<Query> sweep_queries_, owner_queries_;
  ExemptTokens exempt_tokens_;

  // One pass.
  const SelectArgs* pass_ = nullptr;
  size_t first_ = 0;                             // token
  std::vector<std::vector<uint8_t>> inherited_;  // per set, (n_tokens) of the pass
  std::vector<double> inverses_;                 // (n_tokens) of the pass
  Indices column_of_;                            // (n_tokens) of the pass, -1: none

  // One block.
  Rows rows_;
  std::vector<Candidates> candidates_;  // (rows, queries)
  Scan::Parts parts_;
  std::vector<int64_t> block_column_;  // (rows) in block_columns_, -1: none
  std::vector<float> block_products_;

  std::unique_ptr<Subspace> subspace_;  // null without a basis
  enum class SubspaceState : uint8_t {
    kWaits,
    kInUse,
    kGivenUp
  } subspace_state_ = SubspaceState::kWaits;

  Columns columns_;        // what later tokens are compared with
  Columns block_columns_;  // rows of the block that may count
};

}  // namespace sluice::impl::cpu::selection
