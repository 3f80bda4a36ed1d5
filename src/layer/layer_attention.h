// What an accelerated layer keeps of the sequences of a batch: which tokens it chose, and its
// compressed keys and values. docs/algorithm.md, sections 2, 3 and 7.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "plan/attention_plan.h"
#include "ranks/archive.h"
#include "select/inherit.h"

namespace sluice::impl {

// What a layer's attention is shaped like.
struct AttentionShape {
  int64_t d_model, n_heads, n_kv_heads, head_dim;
  bool causal;
  float scale;             // of scores
  bool keeps_all = false;  // RefineSpec::keeps_all
  // Of the plan's heads, that of the first key head here: a rank may have some of them.
  int64_t first_kv_head = 0;
  // Of the rows that are compared: decides pairs cheaply where that pays. Or none.
  std::shared_ptr<const SelectionBasis> basis = nullptr;
};

// The bytes of what layers keep, all sequences together.
struct LayerCacheBytes {
  CacheBytes keys_values;
  int64_t selection_rows = 0;  // that later tokens are compared with
  int64_t outputs = 0;         // of `copy` and `paper`, that later tokens may copy

  int64_t total() const {
    return keys_values.exact + keys_values.clusters + selection_rows + outputs;
  }
  LayerCacheBytes& operator+=(const LayerCacheBytes& other);
};

// What a backend is asked for by a layer of mode `refine`; sinks are rounded up to whole pages.
RefineSpec refine_spec(const LayerPlan& plan, const AttentionShape& shape, DType dtype,
                       int64_t capacity);

class LayerAttention {
 public:
  // capacity: tokens that a sequence may have. above: the selected layer before, whose sets this
  // one inherits or reuses; nullptr for none.
  LayerAttention(Backend& backend, const LayerPlan& plan, const AttentionShape& shape,
                 int64_t n_batch, int64_t capacity, LayerAttention* above);
  // A layer of another process, whose sets come by take_over(): for layers here that inherit or
  // reuse them. taus: those of its chooser.
  LayerAttention(Backend& backend, const LayerPlan& plan, const std::vector<double>& taus,
                 int64_t n_batch);

  const LayerPlan& plan() const { return plan_; }
  // Modes `keys`, `refine` and `baseline`; in `copy` and `paper` tokens that stand for themselves.
  bool attends_every_query() const {
    return plan_.mode == AttentionMode::kKeys || !plan_.selects();
  }
  // Whoever chose the sets in force. In mode `keys` they may end before the last token, but not
  // before the border of the next one; with tau auto they are empty before has_tau().
  const Selector& chooser(int64_t batch) const;
  std::span<const TokenSet> sets(int64_t batch) const { return chooser(batch).sets(); }
  // False as long as tau auto has too few tokens to choose from: every key is near then.
  bool has_tau(int64_t batch) const;
  // The same as chooser(), with every token decided. Needs has_tau().
  const Selector& decided(int64_t batch);
  // The one that all heads of `copy` and `paper` go by; reused sets may be several.
  const TokenSet& only_set(int64_t batch) const;

  // Takes in the next tokens of a sequence. They are decided at once, or, in causal `keys`, when
  // they are a block or a border reaches them: the rows kept for comparison are then read once for
  // many tokens. Modes `refine` and `baseline` only count them.
  void select(int64_t batch, const TokenRows& tokens);
  // Whether sums of squares of so many next tokens would be read: a single one's are found anew,
  // and those of tokens that wait are not kept.
  bool reads_squares(int64_t n_tokens) const;

  // Whether the next step of one token can be recorded; then expect_token() goes before every
  // replay. Steps that cluster a segment cannot.
  bool can_record() const;
  void expect_token();

  int64_t n_tokens(int64_t batch) const {  // taken in
    return sequences_[static_cast<size_t>(batch)].n_tokens;
  }

  KeysAttention& keys(int64_t batch) { return *sequences_[static_cast<size_t>(batch)].keys; }
  RepsAttention& reps(int64_t batch) { return *sequences_[static_cast<size_t>(batch)].reps; }
  RefineAttention& refine(int64_t batch) { return *sequences_[static_cast<size_t>(batch)].refine; }
  BaselineAttention& baseline(int64_t batch) {
    return *sequences_[static_cast<size_t>(batch)].baseline;
  }
  // Attention outputs of tokens that stand for themselves, projected: `n` more rows of
  // (…, d_model) f32 behind what is there, and all of them.
  Tensor add_outputs(int64_t batch, int64_t n);
  ConstTensor outputs(int64_t batch) const;

  // The sets in force as bytes, every token decided: what was not handed down before.
  void hand_down(int64_t batch, Packer& out);
  void take_over(int64_t batch, Unpacker& in);

  void reset();
  LayerCacheBytes bytes() const;

 private:
  struct Sequence {
    std::unique_ptr<Selector> selector;  // none when the sets are reused
    int64_t n_tokens = 0;                // taken in
    Buffer waiting_rows;                 // of tokens that are not decided yet
    Buffer waiting_residual;             // the same, where norms are needed
    int64_t n_waiting = 0;
    std::unique_ptr<Selector> tried;  // with tau auto, once it is chosen: what it was chosen by
    std::unique_ptr<KeysAttention> keys;
    std::unique_ptr<RepsAttention> reps;
    std::unique_ptr<RefineAttention> refine;
    std::unique_ptr<BaselineAttention> baseline;
    Buffer outputs;
    int64_t n_outputs = 0;
    int64_t n_handed = 0;  // tokens that hand_down() has written
  };

  // A selector that has seen nothing, for these.
  std::unique_ptr<Selector> selector_for(const Sequence& sequence, std::vector<double> taus) const;
  void choose_tau(int64_t batch, const TokenRows& tokens);
  bool may_wait() const { return causal_ && plan_.mode == AttentionMode::kKeys; }
  // Whether the next query, after n_tokens more, may need tokens that are not decided.
  bool border_is_reached(int64_t batch, int64_t n_tokens) const;
  // How many tokens are decided together, border or not.
  int64_t enough(int64_t batch) const;
  // Whether n_tokens more are decided by their rows of this pass, here.
  bool decides_at_once(int64_t batch, int64_t n_tokens) const;
  void wait(Sequence& sequence, const TokenRows& tokens);
  void decide(int64_t batch);  // all that wait, here and above
  void extend(int64_t batch, const TokenRows& tokens);

  Backend& backend_;
  LayerPlan plan_;
  int64_t d_model_, capacity_;
  bool causal_;
  LayerAttention* above_;
  std::vector<Sequence> sequences_;
};

}  // namespace sluice::impl
