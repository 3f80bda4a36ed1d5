// Representatives and owners, docs/algorithm.md sections 1 and 2, with the reference's very sets.
//
// One sweep over the tokens, in blocks. A block's rows are multiplied with the columns kept from
// all blocks before (gram_scan.h); rows that may yet be representatives become columns of the
// block's own, and one pass in position order over those products decides. What later tokens must
// be compared with is then kept. Rules and owners that look ahead add passes over the whole
// sequence.

#include "backend/cpu/selector.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "backend/cpu/gram_rules.h"
#include "backend/cpu/gram_scan.h"
#include "backend/exact.h"
#include "core/threads.h"

namespace sluice::cpu {
namespace {

// Many enough rows that a panel's way through the caches is paid for; few enough that what they
// compare among themselves, and decide one by one, is little.
constexpr size_t kBlockRows = 128;

const GemmKernel& fastest_kernel() {
  const GemmKernel* bfmmla = gemm_bfmmla();
  return bfmmla != nullptr ? *bfmmla : gemm_f32();
}

bool same_rows(const ConstTensor& a, const ConstTensor& b) {
  return a.bytes() == b.bytes() && a.dtype() == b.dtype() && a.row_stride() == b.row_stride();
}

class GramSelector final : public Selector {
 public:
  explicit GramSelector(const SelectorSpec& spec)
      : Selector(spec),
        rule_(spec.rule),
        kernel_(fastest_kernel()),
        exempt_tokens_(spec.sinks, spec.outlier_ratio),
        rows_(kernel_, spec.d_model),
        columns_(no_columns()),
        block_columns_(no_columns()) {
    for (const double tau : spec_.taus) SLUICE_CHECK(tau >= 0 && tau < 1);
    for (size_t set = 0; set < spec_.taus.size(); ++set) {
      if (spec_.taus[set] > 0) live_sets_.push_back(set);
      const bool magnitudes = compares_magnitudes(rule_);
      sweep_queries_.push_back({mask(set, kOwnerMask), false});
      sweep_queries_.push_back({mask(set, deciding_mask(rule_, false)), magnitudes});
      sweep_queries_.push_back({mask(set, kInheritedMask), magnitudes});
      const bool paper = spec_.owner == OwnerKind::kPaper;
      owner_queries_.push_back({mask(set, kOwnerMask), paper, spec_.owner == OwnerKind::kEarlier});
    }
    GramSelector::reset();
  }

  void extend(const SelectArgs& args) override;
  int64_t bytes() const override { return columns_.bytes(); }

  void reset() override {
    exempt_tokens_ = ExemptTokens(spec_.sinks, spec_.outlier_ratio);
    columns_ = no_columns();
    block_columns_ = no_columns();
    sets_.assign(spec_.taus.size(), {});
    for (size_t i = 0; i < sets_.size(); ++i) sets_[i].tau = spec_.taus[i];
    products_ = 0;
  }

 private:
  using Indices = std::vector<int32_t>;  // of tokens, counted from the pass's first

  static size_t mask(size_t set, GramMask kind) { return set * kGramMasks + kind; }
  GramColumns no_columns() const {
    return {kernel_, spec_.d_model, kGramMasks * spec_.taus.size()};
  }
  bool looks_ahead() const {
    return rule_ == SelectRule::kCascadePaper || spec_.owner != OwnerKind::kEarlier;
  }
  bool inherited(size_t set, int32_t index) const {
    return inherits(rule_) && pass_->inherited[set][static_cast<size_t>(index)] != 0;
  }
  double threshold(size_t set) const { return threshold_of(spec_.taus[set]); }
  size_t token(int32_t index) const { return first_ + static_cast<size_t>(index); }
  // Whether the sweep decides a token of a set: not yet where it waits for later ones.
  bool swept(size_t set, int32_t index) const {
    return rule_ != SelectRule::kCascadePaper || inherited(set, index);
  }

  Indices begin_pass(const SelectArgs& args);
  template <typename Picks, typename Block>
  void for_blocks(const Indices& tokens, const Picks& picks, const Block& block);
  void scan(const GramColumns& columns, std::span<const GramQuery> queries);

  void sweep_block(const Indices& block);
  void ask_sweep(const Indices& block);
  GramCandidates& deciding(int64_t row, size_t set, int32_t index);
  bool may_count(int64_t row, int32_t index);
  void decide(GramJudge& judge, int64_t row, int32_t index);
  void keep_columns(const Indices& block);
  void check_against_kept(const Indices& tokens);
  void choose_owners(const Indices& tokens);
  void settle_owner(GramJudge& judge, size_t set, int64_t row, int32_t index,
                    GramCandidates& candidates);
  void number_clusters(TokenSet& set) const;

  SelectRule rule_;
  const GemmKernel& kernel_;
  std::vector<size_t> live_sets_;  // those of tau > 0
  std::vector<GramQuery> sweep_queries_, owner_queries_;
  ExemptTokens exempt_tokens_;

  // One pass.
  const SelectArgs* pass_ = nullptr;
  size_t first_ = 0;              // token
  std::vector<double> inverses_;  // (n_tokens) of the pass
  Indices column_of_;             // (n_tokens) of the pass, -1: none

  // One block.
  GramRows rows_;
  std::vector<GramCandidates> candidates_;  // (rows, queries)
  GramScan::Parts parts_;
  std::vector<int64_t> block_column_;  // (rows) in block_columns_, -1: none
  std::vector<float> block_products_;

  GramColumns columns_;        // what later tokens are compared with
  GramColumns block_columns_;  // rows of the block that may count
};

// Takes in the tokens of a pass and tells the exempt ones; returns those that are compared.
GramSelector::Indices GramSelector::begin_pass(const SelectArgs& args) {
  const int64_t n = args.rows.rows();
  SLUICE_CHECK(args.rows.row_elements() == spec_.d_model);
  SLUICE_CHECK(!inherits(rule_) || args.inherited.size() == sets_.size());
  for (const auto flags : args.inherited) SLUICE_CHECK(static_cast<int64_t>(flags.size()) == n);
  pass_ = &args;
  first_ = sets_.empty() ? 0 : sets_[0].status.size();
  SLUICE_CHECK(first_ == 0 || !looks_ahead());
  inverses_.resize(static_cast<size_t>(n));
  if (!live_sets_.empty()) inverse_norms(args.rows, inverses_);
  column_of_.assign(static_cast<size_t>(n), -1);

  std::vector<double> norms(static_cast<size_t>(n));
  if (exempt_tokens_.needs_norms()) {
    if (same_rows(args.rows, args.residual) && !live_sets_.empty())
      norms = inverses_;
    else
      inverse_norms(args.residual, norms);
    for (double& norm : norms) norm = norm > 0 ? 1 / norm : 0;
  }
  Indices compared;
  std::vector<TokenStatus> statuses;
  for (int64_t i = 0; i < n; ++i) {
    const bool exempt = exempt_tokens_.next(norms[static_cast<size_t>(i)]);
    statuses.push_back(exempt ? TokenStatus::kExempt : TokenStatus::kRepresentative);
    if (!exempt) compared.push_back(static_cast<int32_t>(i));
  }
  // Everyone represents itself until decided otherwise.
  for (TokenSet& set : sets_) {
    set.status.insert(set.status.end(), statuses.begin(), statuses.end());
    set.owner.resize(set.status.size());
    std::iota(set.owner.begin() + static_cast<int64_t>(first_), set.owner.end(),
              static_cast<int32_t>(first_));
    set.cluster.resize(set.status.size());
    if (spec_.want_cosines) set.cosine.resize(set.status.size(), 1.0f);
  }
  return compared;
}

// Calls block(indices) on blocks of the tokens that are picked.
template <typename Picks, typename Block>
void GramSelector::for_blocks(const Indices& tokens, const Picks& picks, const Block& block) {
  Indices picked;
  for (size_t i = 0; i <= tokens.size(); ++i) {
    if (i < tokens.size() && picks(tokens[i])) picked.push_back(tokens[i]);
    if (picked.empty() || (picked.size() < kBlockRows && i < tokens.size())) continue;
    rows_.assign({pass_->rows, inverses_, static_cast<int64_t>(first_)}, picked);
    block(picked);
    picked.clear();
  }
}

void GramSelector::scan(const GramColumns& columns, std::span<const GramQuery> queries) {
  products_ +=
      GramScan{&kernel_, spec_.d_model, &rows_, &columns, queries}.run(candidates_, parts_);
}

void GramSelector::extend(const SelectArgs& args) {
  const Indices tokens = begin_pass(args);
  if (!live_sets_.empty()) {
    const auto picks = [&](int32_t index) {
      return std::any_of(live_sets_.begin(), live_sets_.end(),
                         [&](size_t set) { return swept(set, index); });
    };
    for_blocks(tokens, picks, [&](const Indices& block) { sweep_block(block); });
    if (rule_ == SelectRule::kCascadePaper) check_against_kept(tokens);
    if (looks_ahead()) choose_owners(tokens);
  }
  for (TokenSet& set : sets_) number_clusters(set);
  pass_ = nullptr;
}

// What decides a token: the nearest owner where that is looked for anyway.
GramCandidates& GramSelector::deciding(int64_t row, size_t set, int32_t index) {
  const GramMask kind = deciding_mask(rule_, inherited(set, index));
  const size_t slot = kind == kOwnerMask && looks_ahead() ? size_t{kPlainMask} : size_t{kind};
  return candidates_[static_cast<size_t>(row) * sweep_queries_.size() + mask(set, GramMask(slot))];
}

void GramSelector::ask_sweep(const Indices& block) {
  candidates_.resize(block.size() * sweep_queries_.size());
  for (GramCandidates& candidates : candidates_) candidates.ask_nothing();
  for (size_t row = 0; row < block.size(); ++row)
    for (const size_t set : live_sets_) {
      if (!swept(set, block[row])) continue;
      const bool fixed = rule_ == SelectRule::kFixed;
      if (!fixed)
        deciding(static_cast<int64_t>(row), set, block[row])
            .ask_threshold(threshold(set), compares_magnitudes(rule_));
      if (!looks_ahead() && !(fixed && inherited(set, block[row])))
        candidates_[row * sweep_queries_.size() + mask(set, kOwnerMask)].ask_nearest(false);
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
                                    [](const GramCandidates& c) { return c.asks(); });
  if (any_asks) scan(columns_, sweep_queries_);

  block_columns_.clear();
  block_column_.assign(block.size(), -1);
  for (int64_t row = 0; row < rows_.size(); ++row)
    if (may_count(row, block[static_cast<size_t>(row)]))
      block_column_[static_cast<size_t>(row)] = block_columns_.append(rows_, row);

  const GramScan own{&kernel_, spec_.d_model, &rows_, &block_columns_, sweep_queries_};
  if (any_asks) products_ += own.multiply(block_products_);
  GramJudge judge(rows_, spec_.d_model);
  for (int64_t row = 0; row < rows_.size(); ++row) {
    if (any_asks) own.collect_row(block_products_, row, candidates_);
    decide(judge, row, block[static_cast<size_t>(row)]);
  }
  keep_columns(block);
}

void GramSelector::decide(GramJudge& judge, int64_t row, int32_t index) {
  for (const size_t set : live_sets_) {
    if (!swept(set, index)) continue;
    const bool is_inherited = inherited(set, index);
    const bool in_set = rule_ == SelectRule::kFixed
                            ? is_inherited
                            : !judge.reaches(row, threshold(set), deciding(row, set, index));
    const auto masks = masks_of(rule_, is_inherited, in_set);
    for (size_t kind = 0; kind < kGramMasks; ++kind)
      if (masks[kind])
        block_columns_.count_in(mask(set, GramMask(kind)), block_column_[static_cast<size_t>(row)]);
    if (in_set) continue;
    sets_[set].status[token(index)] = TokenStatus::kRedundant;
    if (!looks_ahead())
      settle_owner(
          judge, set, row, index,
          candidates_[static_cast<size_t>(row) * sweep_queries_.size() + mask(set, kOwnerMask)]);
  }
}

void GramSelector::keep_columns(const Indices& block) {
  const size_t n_masks = kGramMasks * sets_.size();
  for (size_t row = 0; row < block.size(); ++row) {
    const int64_t from = block_column_[row];
    if (from < 0) continue;
    int64_t to = -1;
    for (size_t i = 0; i < n_masks; ++i) {
      if (!block_columns_.counts(i, from)) continue;
      if (to < 0) to = columns_.append(rows_, static_cast<int64_t>(row));
      if (i % kGramMasks == kOwnerMask && may_crowd(rule_))
        columns_.count_in_once(i, to);
      else
        columns_.count_in(i, to);
    }
    column_of_[static_cast<size_t>(block[row])] = static_cast<int32_t>(to);
  }
}

// Algorithm 1 of the paper, lines 6 to 10: tokens that are not inherited against all kept ones.
void GramSelector::check_against_kept(const Indices& tokens) {
  const auto waits = [&](int32_t index) {
    return std::any_of(live_sets_.begin(), live_sets_.end(),
                       [&](size_t set) { return !inherited(set, index); });
  };
  std::vector<GramQuery> queries;
  for (size_t set = 0; set < sets_.size(); ++set) queries.push_back({mask(set, kPlainMask), true});
  Indices additions;
  for_blocks(tokens, waits, [&](const Indices& block) {
    candidates_.resize(block.size() * queries.size());
    for (GramCandidates& candidates : candidates_) candidates.ask_nothing();
    for (size_t row = 0; row < block.size(); ++row)
      for (const size_t set : live_sets_)
        if (!inherited(set, block[row]))
          candidates_[row * queries.size() + set].ask_threshold(threshold(set), true);
    scan(columns_, queries);
    GramJudge judge(rows_, spec_.d_model);
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
  });
  for_blocks(
      additions, [](int32_t) { return true; },
      [&](const Indices& block) {
        for (size_t row = 0; row < block.size(); ++row) {
          int32_t& column = column_of_[static_cast<size_t>(block[row])];
          if (column < 0)
            column = static_cast<int32_t>(columns_.append(rows_, static_cast<int64_t>(row)));
          for (const size_t set : live_sets_)
            if (sets_[set].in_set(static_cast<int64_t>(token(block[row]))))
              columns_.count_in_once(mask(set, kOwnerMask), column);
        }
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
    for (GramCandidates& candidates : candidates_) candidates.ask_nothing();
    for (size_t row = 0; row < block.size(); ++row)
      for (const size_t set : live_sets_)
        if (is_owned(set, block[row]))
          candidates_[row * owner_queries_.size() + set].ask_nearest(owner_queries_[set].absolute);
    scan(columns_, owner_queries_);
    parallel_for(rows_.size(), 8, [&](int64_t begin, int64_t end) {
      GramJudge judge(rows_, spec_.d_model);
      for (int64_t row = begin; row < end; ++row) {
        const int32_t index = block[static_cast<size_t>(row)];
        for (const size_t set : live_sets_)
          if (is_owned(set, index))
            settle_owner(judge, set, row, index,
                         candidates_[static_cast<size_t>(row) * owner_queries_.size() + set]);
      }
    });
  });
}

void GramSelector::settle_owner(GramJudge& judge, size_t set, int64_t row, int32_t index,
                                GramCandidates& candidates) {
  GramCandidate* owner = judge.nearest(row, candidates);
  const size_t t = token(index);
  if (owner != nullptr) sets_[set].owner[t] = static_cast<int32_t>(owner->position());
  if (spec_.want_cosines) {
    if (owner != nullptr) judge.make_exact(row, candidates.absolute, {owner, 1});
    sets_[set].cosine[t] = owner == nullptr ? -1.0f : static_cast<float>(owner->cosine);
  }
  const bool owned = owner != nullptr && (spec_.owner == OwnerKind::kPaper ||
                                          judge.reaches(row, threshold(set), candidates));
  if (!owned) sets_[set].status[t] = TokenStatus::kUncovered;
}

void GramSelector::number_clusters(TokenSet& set) const {
  for (size_t t = first_; t < set.status.size(); ++t)
    if (set.status[t] != TokenStatus::kRedundant)
      set.cluster[t] = static_cast<int32_t>(set.n_clusters++);
  for (size_t t = first_; t < set.status.size(); ++t)
    if (set.status[t] == TokenStatus::kRedundant)
      set.cluster[t] = set.cluster[static_cast<size_t>(set.owner[t])];
}

}  // namespace

std::unique_ptr<Selector> make_selector(const SelectorSpec& spec) {
  return std::make_unique<GramSelector>(spec);
}

}  // namespace sluice::cpu
