// What an accelerated layer keeps of the sequences of a batch: which tokens it chose, and its
// compressed keys and values. docs/algorithm.md, sections 2 and 3.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "plan/attention_plan.h"

namespace sluice {

// What a layer's attention is shaped like.
struct AttentionShape {
  int64_t d_model, n_heads, n_kv_heads, head_dim;
  bool causal;
  float scale;  // of scores
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

class LayerAttention {
 public:
  // above: the selected layer before, whose sets this one inherits or reuses; nullptr for none.
  LayerAttention(Backend& backend, const LayerPlan& plan, const AttentionShape& shape,
                 int64_t n_batch, const LayerAttention* above);

  const LayerPlan& plan() const { return plan_; }
  // The sets in force, of the layer that chose them.
  std::span<const TokenSet> sets(int64_t batch) const;
  const Selector& selector(int64_t batch) const;
  // The one that all heads of `copy` and `paper` go by; reused sets may be several.
  const TokenSet& only_set(int64_t batch) const;

  // Decides the next tokens of a sequence; rows and residual are its rows of this pass.
  void select(int64_t batch, const ConstTensor& rows, const ConstTensor& residual);

  KeysAttention& keys(int64_t batch) { return *sequences_[static_cast<size_t>(batch)].keys; }
  RepsAttention& reps(int64_t batch) { return *sequences_[static_cast<size_t>(batch)].reps; }
  // Attention outputs of tokens that stand for themselves, projected: `n` more rows of
  // (…, d_model) f32 behind what is there, and all of them.
  Tensor add_outputs(int64_t batch, int64_t n);
  ConstTensor outputs(int64_t batch) const;

  void reset();
  LayerCacheBytes bytes() const;

 private:
  struct Sequence {
    std::unique_ptr<Selector> selector;  // none when the sets are reused
    std::unique_ptr<KeysAttention> keys;
    std::unique_ptr<RepsAttention> reps;
    Buffer outputs;
    int64_t n_outputs = 0;
  };

  Backend& backend_;
  LayerPlan plan_;
  int64_t d_model_;
  const LayerAttention* above_;
  std::vector<Sequence> sequences_;
};

}  // namespace sluice
