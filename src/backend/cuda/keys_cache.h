// What attention of mode `keys` keeps of a sequence: recent tokens exactly, and the clusters of
// those before the border as means and counts.
//
// Tokens that have passed the border stay until the next pass asks for them: by then the host has
// learnt how many clusters they make, and nobody had to wait for it.

#pragma once

#include <span>
#include <vector>

#include "backend/cuda/keys_kernels.h"
#include "backend/cuda/selector.h"

namespace sluice::cuda {

// The members of one set's clusters in a range of tokens, linked.
struct Links {
  Links(const std::shared_ptr<Context>& context, const int32_t* cluster, const uint8_t* status,
        int64_t first, int64_t n, int64_t n_clusters);
  MembersView view(const int32_t* counts_before, int64_t n_before) const {
    return {first,      order.size(),  order.data(), clusters.data(),
            own.data(), counts_before, n_before};
  }
  int64_t first;
  DeviceArray<int32_t> order, clusters, own, first_new, next, counts;
};

class KeysCache {
 public:
  KeysCache(std::shared_ptr<Context> context, const KeysSpec& spec);
  ~KeysCache();
  KeysCache(const KeysCache&) = delete;
  KeysCache& operator=(const KeysCache&) = delete;

  void reset();
  void add(const ConstTensor& keys, const ConstTensor& values);
  // Notes that tokens before `border` are to become clusters, of these sets.
  void pass(const DeviceSets& sets, int64_t border);
  // Makes them so. What leaves the exact tokens is freed.
  void settle();

  const std::vector<size_t>& sets() const { return sets_; }  // that heads go by, ascending
  const HeadView* heads() const { return heads_.data(); }
  int32_t head_of(size_t set) const;  // any
  // Rows that heads go by: the clusters of sets()[set], or only the exempt ones, for window heads.
  struct List {
    size_t set;
    bool exempt_only;
    bool operator==(const List&) const = default;
  };
  const std::vector<List>& lists() const { return lists_; }
  int64_t n_tokens() const { return n_tokens_; }
  int64_t border() const { return border_; }  // tokens before it are clusters
  int64_t n_clusters(size_t index) const { return n_clusters_[index]; }  // of sets()[index]
  const int32_t* counts(size_t index) const { return counts_.data() + at(index); }
  const uint8_t* exempt(size_t index) const { return exempt_.data() + at(index); }
  TokenRows tokens() const;
  ClusterRows clusters() const;
  CacheBytes bytes() const;

 private:
  int64_t at(size_t index) const { return static_cast<int64_t>(index) * cluster_capacity_; }
  int64_t row_bytes() const { return spec_.head_dim * element_bytes(spec_.dtype); }
  int64_t first_kept() const { return has_dense_ ? 0 : border_; }
  void reserve_tokens(int64_t n_more);
  void reserve_clusters(int64_t n);
  DeviceArray<std::byte> moved(const DeviceArray<std::byte>& from, int64_t row, int64_t capacity,
                               int64_t first, int64_t n, int64_t new_capacity) const;

  std::shared_ptr<Context> context_;
  KeysSpec spec_;
  bool bf16_, has_dense_ = false;
  std::vector<size_t> sets_;
  std::vector<List> lists_;
  DeviceArray<HeadView> heads_;

  int64_t n_tokens_ = 0, base_ = 0, capacity_ = 0;
  DeviceArray<std::byte> keys_, values_;  // (n_kv_heads, capacity, head_dim)

  int64_t border_ = 0, cluster_capacity_ = 0;
  std::vector<int64_t> n_clusters_;
  DeviceArray<std::byte> cluster_keys_, cluster_values_;  // (n_kv_heads, capacity, head_dim)
  DeviceArray<std::byte> keys_rest_, values_rest_;
  DeviceArray<int32_t> counts_;  // (sets, capacity)
  DeviceArray<uint8_t> exempt_;  // (sets, capacity)

  // Tokens [border_, border_ + n_passed_), per set.
  int64_t n_passed_ = 0;
  DeviceArray<int32_t> passed_cluster_;
  DeviceArray<uint8_t> passed_status_;
  DeviceArray<int32_t> most_;  // clusters, per set
  PinnedBytes arriving_;
  cudaEvent_t arrived_ = nullptr;
};

}  // namespace sluice::cuda
