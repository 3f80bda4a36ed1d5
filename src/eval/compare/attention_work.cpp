#include "eval/compare/attention_work.h"

#include <algorithm>

#include "core/error.h"
#include "select/counters.h"
#include "select/inherit.h"

namespace sluice::impl {
namespace {

double fraction(double part, double whole) { return whole > 0 ? part / whole : 0; }

int64_t below_diagonal(int64_t n) { return n * (n + 1) / 2; }

// Keys that all queries of a window score in one query head.
int64_t keys_of(const LayerPlan& plan, HeadKind kind, const TokenSet& set, bool causal) {
  const int64_t n = set.n_tokens();
  // Among the tokens that stand for themselves alone; the others score nothing.
  if (plan.mode != AttentionMode::kKeys)
    return causal ? below_diagonal(set.n_clusters) : set.n_clusters * set.n_clusters;
  return keys_read(
      set, kind,
      {.first = 0, .n_tokens = n, .window = plan.window, .block = plan.block, .causal = causal});
}

int64_t clusters_of(HeadKind kind, const TokenSet& set) {
  switch (kind) {
    case HeadKind::kDense:
      return set.n_tokens();
    case HeadKind::kWindow:
      return std::count(set.status.begin(), set.status.end(), TokenStatus::kExempt);
    case HeadKind::kClusters:
      return set.n_clusters;
  }
  SLUICE_CHECK(!"unknown head");
}

// What a set of tau inherits; nullptr at the first selected layer.
const TokenSet* inherited_by(double tau, const Selector* above) {
  return above == nullptr ? nullptr : &above->sets()[nearest_set(above->spec().taus, tau)];
}

}  // namespace

int64_t dense_keys(int64_t n_tokens, int64_t sliding) {
  const int64_t beyond = sliding > 0 ? std::max<int64_t>(n_tokens - sliding, 0) : 0;
  return below_diagonal(n_tokens) - below_diagonal(beyond);
}

void AttentionWork::add_layer(const LayerWork& layer) {
  const auto n_heads = static_cast<double>(layer.n_kv_heads);
  const auto exact_keys = static_cast<double>(
      layer.causal ? dense_keys(layer.n_tokens, layer.window) : layer.n_tokens * layer.n_tokens);
  const auto n = static_cast<double>(layer.n_tokens);
  dense_keys_ += n_heads * exact_keys;
  tokens_ += n_heads * n;
  if (layer.selector == nullptr) {
    keys_ += n_heads * exact_keys;
    clusters_ += n_heads * n;
    return;
  }
  const std::vector<TokenSet>& sets = layer.selector->sets();
  for (const HeadPlan& head : layer.plan->heads) {
    const bool clusters = head.kind == HeadKind::kClusters;  // others read exempt tokens at most
    const TokenSet& set = sets[clusters ? nearest_set(layer.selector->spec().taus, head.tau) : 0];
    SLUICE_CHECK(set.n_tokens() == layer.n_tokens);
    keys_ += static_cast<double>(keys_of(*layer.plan, head.kind, set, layer.causal));
    clusters_ += static_cast<double>(clusters_of(head.kind, set));
  }
  // A layer may use the sets of the one above as they are.
  if (layer.selector != layer.above) add_selection(layer);
}

void AttentionWork::add_selection(const LayerWork& layer) {
  const auto n = static_cast<double>(layer.n_tokens);
  pairs_ += n * n;
  products_ += static_cast<double>(layer.selector->products());
  for (const TokenSet& set : layer.selector->sets())
    products_paper_ += static_cast<double>(products_by_the_paper(
        layer.selector->spec().rule, set, inherited_by(set.tau, layer.above)));
}

void AttentionWork::add(const KvCache& cache, const ModelSpec& spec) {
  SLUICE_CHECK(cache.n_batch() == 1);
  const std::vector<LayerPlan>& layers = cache.plan().layers;
  const Selector* above = nullptr;
  for (int64_t i = 0; i < spec.n_layers; ++i) {
    if (!layers.empty() && layers[static_cast<size_t>(i)].mode == AttentionMode::kRefine) {
      add_refined(cache, spec, i);
      continue;
    }
    if (!layers.empty() && layers[static_cast<size_t>(i)].mode == AttentionMode::kBaseline) {
      add_baseline(cache, spec, i);
      continue;
    }
    const Selector* selector = cache.selector(i);
    add_layer({.plan = layers.empty() ? nullptr : &layers[static_cast<size_t>(i)],
               .selector = selector,
               .above = above,
               .n_kv_heads = spec.n_kv_heads,
               .n_tokens = cache.length(),
               .window = spec.window(i),
               .causal = spec.causal});
    if (selector == nullptr) continue;
    above = selector;
    if (!layers[static_cast<size_t>(i)].tau_auto) continue;
    chosen_taus_.resize(static_cast<size_t>(spec.n_layers));
    chosen_taus_[static_cast<size_t>(i)].add(selector->spec().taus.front());
  }
}

void AttentionWork::add_window(const AttentionWork& window) {
  keys_ += window.keys_;
  dense_keys_ += window.dense_keys_;
  clusters_ += window.clusters_;
  tokens_ += window.tokens_;
  products_ += window.products_;
  products_paper_ += window.products_paper_;
  pairs_ += window.pairs_;
  if (!window.chosen_taus_.empty()) chosen_taus_.resize(window.chosen_taus_.size());
  for (size_t i = 0; i < window.chosen_taus_.size(); ++i) {
    SLUICE_CHECK(window.chosen_taus_[i].count() <= 1);
    if (window.chosen_taus_[i].count() == 1) chosen_taus_[i].add(window.chosen_taus_[i].mean());
  }
  if (!window.refine_reads_.empty()) refine_reads_.resize(window.refine_reads_.size());
  for (size_t i = 0; i < window.refine_reads_.size(); ++i)
    refine_reads_[i] += window.refine_reads_[i];
}

void AttentionWork::add_baseline(const KvCache& cache, const ModelSpec& spec, int64_t layer) {
  // Sums here count key/value heads.
  const double group = static_cast<double>(spec.n_heads) / static_cast<double>(spec.n_kv_heads);
  const int64_t n = cache.length();
  keys_ += static_cast<double>(cache.accelerated(layer)->baseline(0).keys_read()) / group;
  dense_keys_ += static_cast<double>(spec.n_kv_heads * below_diagonal(n));
  tokens_ += static_cast<double>(spec.n_kv_heads * n);
  clusters_ += static_cast<double>(spec.n_kv_heads * n);
}

void AttentionWork::add_refined(const KvCache& cache, const ModelSpec& spec, int64_t layer) {
  const LayerPlan& plan = cache.plan().layers[static_cast<size_t>(layer)];
  refine_reads_.resize(static_cast<size_t>(spec.n_layers));
  RefineReads& reads = refine_reads_[static_cast<size_t>(layer)];
  const double keys_before = reads.keys(), dense_before = reads.dense_keys();
  reads.add(plan, {spec.n_heads, cache.length(), spec.causal},
            cache.accelerated(layer)->refine(0).opened());
  // Sums here count key/value heads.
  const double group = static_cast<double>(spec.n_heads) / static_cast<double>(spec.n_kv_heads);
  keys_ += (reads.keys() - keys_before) / group;
  dense_keys_ += (reads.dense_keys() - dense_before) / group;
  const auto n = static_cast<double>(cache.length());
  tokens_ += static_cast<double>(spec.n_kv_heads) * n;
  for (const HeadPlan& head : plan.heads)
    if (head.kind != HeadKind::kWindow)
      clusters_ += head.kind == HeadKind::kDense ? n : n / static_cast<double>(plan.refine.page);
}

double AttentionWork::keys_read_fraction() const { return fraction(keys_, dense_keys_); }
double AttentionWork::clusters_fraction() const { return fraction(clusters_, tokens_); }
double AttentionWork::selection_products() const { return fraction(products_, pairs_); }
double AttentionWork::selection_products_paper() const { return fraction(products_paper_, pairs_); }

}  // namespace sluice::impl
