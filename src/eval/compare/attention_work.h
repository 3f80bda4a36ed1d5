// What attention did with a text, counted: keys scored, clusters, products of the selection.

#pragma once

#include "backend/select.h"
#include "eval/compare/refine_reads.h"
#include "eval/compare/running_mean.h"
#include "model/kv_cache.h"
#include "plan/attention_plan.h"

namespace sluice::impl {

// Keys that exact attention scores in one head of a causal model, from the first token on.
// sliding: its window, 0 for none. An encoder's queries see every token.
int64_t dense_keys(int64_t n_tokens, int64_t sliding);

// One layer after a window, from its first token on.
struct LayerWork {
  const LayerPlan* plan;            // nullptr or kDense: exact attention
  const Selector* selector;         // the sets the layer used; nullptr for exact attention
  const Selector* above = nullptr;  // of the selected layer before; nullptr at the first
  int64_t n_kv_heads;
  int64_t n_tokens;
  int64_t window = 0;  // of exact attention that slides; 0 for all tokens before
  bool causal = true;
};

// Sums over windows, layers and key/value heads (query heads in equal groups do the same, so
// shares are those of all query heads).
class AttentionWork {
 public:
  void add_layer(const LayerWork& layer);
  // Every layer of a cache that holds one sequence.
  void add(const KvCache& cache, const ModelSpec& spec);
  // Adds what was counted of one window elsewhere.
  void add_window(const AttentionWork& window);

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(keys_, dense_keys_, clusters_, tokens_, products_, products_paper_, pairs_,
            chosen_taus_, refine_reads_);
  }

  // Keys really scored, over those of exact attention.
  double keys_read_fraction() const;
  // Clusters over tokens, mean over heads; a dense head counts 1, a window head its exempt tokens.
  double clusters_fraction() const;
  // Products of rows, of the selected layers: computed, and by the paper's count (n_tokens^2 for
  // `independent`, n_tokens * n_reps inherited for the cascades, n_tokens * n_reps for `greedy`),
  // over n_tokens^2. 0 where nothing is selected.
  double selection_products() const;
  double selection_products_paper() const;
  // (n_layers) what layers with tau auto chose, over windows long enough to choose; empty where
  // none did.
  const std::vector<RunningMean>& chosen_taus() const { return chosen_taus_; }
  // (n_layers) what layers of mode `refine` read, empty in others; empty where none is.
  const std::vector<RefineReads>& refine_reads() const { return refine_reads_; }

 private:
  void add_selection(const LayerWork& layer);
  void add_baseline(const KvCache& cache, const ModelSpec& spec, int64_t layer);
  void add_refined(const KvCache& cache, const ModelSpec& spec, int64_t layer);

  double keys_ = 0, dense_keys_ = 0;
  double clusters_ = 0, tokens_ = 0;
  double products_ = 0, products_paper_ = 0, pairs_ = 0;
  std::vector<RunningMean> chosen_taus_;
  std::vector<RefineReads> refine_reads_;
};

}  // namespace sluice::impl
