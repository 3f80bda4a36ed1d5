// What attention of mode `keys` keeps of a sequence: recent tokens exactly, and the clusters of
// those before the border as means and counts.
//
// A pass reads its own keys and values where they are; of them, only what stays exact is stored.
// Running means of tokens that have passed the border stay until the next pass asks for them: by
// then the host has learnt how many clusters they make, and nobody had to wait for it.

#pragma once

#include <span>
#include <vector>

#include "backend/cuda/attention/keys/shared.h"
#include "backend/cuda/selection/selector.h"

namespace sluice::impl::cuda::keys {

// Of the tokens [first, first + n).
struct RunningMeans {
  int64_t first = 0, n = 0;
  std::shared_ptr<const LinkedSets> linked;
  DeviceArray<std::byte> keys, values;  // (n_kv_heads, n, head_dim)
  // What rounding left of clusters' last means; none where there are no clusters yet.
  DeviceArray<std::byte> keys_rest, values_rest;
};

class KeysCache {
 public:
  KeysCache(std::shared_ptr<Context> context, const KeysSpec& spec);

  void reset();
  // Clusters take in what has passed the border since. Comes first in a pass, then find_means, what
  // reads them, and keep.
  void settle();
  // Of the tokens from the border up to `end`; they hold until keep. version: as in LinkKey.
  const RunningMeans& find_means(const selection::DeviceSets& sets, uint64_t version,
                                 const TokenRows& tokens, int64_t end);
  // Of the links of those tokens.
  LinkKey link_key(uint64_t version) const;
  // Keeps of the pass what stays exact; the rest is to become clusters.
  void keep(const ConstTensor& keys, const ConstTensor& values);

  const std::vector<size_t>& sets() const { return sets_; }  // that heads go by, ascending
  const HeadView* heads() const { return heads_.data(); }
  const std::vector<ListedSet>& lists() const { return lists_; }  // that heads go by
  KeysShared& shared() const { return *shared_; }
  int64_t n_tokens() const { return n_tokens_; }
  int64_t border() const { return border_; }  // tokens before it are clusters
  int64_t n_clusters(size_t index) const { return n_clusters_[index]; }  // of sets()[index]
  const int32_t* counts(size_t index) const { return counts_.data() + at(index); }
  const uint8_t* exempt(size_t index) const { return exempt_.data() + at(index); }
  // With the keys and values of a pass.
  TokenRows tokens(const ConstTensor& keys, const ConstTensor& values) const;
  ClusterRows clusters() const;
  CacheBytes bytes() const;

 private:
  int64_t at(size_t index) const { return static_cast<int64_t>(index) * cluster_capacity_; }
  int64_t row_bytes() const { return spec_.head_dim * element_bytes(spec_.dtype); }
  void link(const selection::DeviceSets& sets, LinkedSets& to) const;
  void reserve_tokens(int64_t first, int64_t end);
  void reserve_clusters(int64_t n);
  DeviceArray<std::byte> moved(const DeviceArray<std::byte>& from, int64_t capacity, int64_t first,
                               int64_t n, int64_t new_capacity) const;

  std::shared_ptr<Context> context_;
  std::shared_ptr<KeysShared> shared_;
  KeysSpec spec_;
  bool bf16_, has_dense_ = false;
  std::vector<size_t> sets_;
  std::vector<ListedSet> lists_;
  DeviceArray<HeadView> heads_;

  int64_t n_tokens_ = 0, base_ = 0, capacity_ = 0;
  DeviceArray<std::byte> keys_, values_;  // (n_kv_heads, capacity, head_dim)

  int64_t border_ = 0, cluster_capacity_ = 0;
  std::vector<int64_t> n_clusters_;
  DeviceArray<std::byte> cluster_keys_, cluster_values_;  // (n_kv_heads, capacity, head_dim)
  DeviceArray<std::byte> keys_rest_, values_rest_;
  DeviceArray<int32_t> counts_;  // (sets, capacity)
  DeviceArray<uint8_t> exempt_;  // (sets, capacity)

  RunningMeans means_;
  bool passed_ = false;  // means_ are to become clusters
};

}  // namespace sluice::impl::cuda::keys
