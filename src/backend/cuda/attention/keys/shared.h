// What layers of mode `keys` that go by the same sets need not find out twice: who belongs to which
// cluster, and which rows are in force at each border. The last of each is kept: layers that reuse
// sets follow the one that chose them.

#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/attention/keys/kernels.h"

namespace sluice::impl::cuda::keys {

// The members of one set's clusters in a range of tokens, linked.
class Links {
 public:
  // args.members: first, n, n_clusters and block.
  Links(const std::shared_ptr<Context>& context, LinkArgs args);
  const MembersView& view() const { return view_; }

 private:
  DeviceArray<int32_t> memory_;
  MembersView view_;
};

// Those of several sets, for as long as a layer has use of them.
struct LinkedSets {
  explicit LinkedSets(size_t sets);
  ~LinkedSets() { cudaEventSynchronize(arrived.get()); }
  LinkedSets(const LinkedSets&) = delete;
  LinkedSets& operator=(const LinkedSets&) = delete;

  std::vector<Links> links;     // per set
  DeviceArray<uint8_t> status;  // (sets, n)
  // Per set: written by the device, and known after wait.
  LinkExtent* extent(size_t set) const {
    return reinterpret_cast<LinkExtent*>(pinned.data()) + set;
  }
  void wait() const { check(cudaEventSynchronize(arrived.get()), "clusters' extent"); }
  // Whether a cluster may have more than a segment of members: yes, as long as it is not known.
  bool may_be_long(size_t set) const;

  size_t n_sets;
  PinnedBytes pinned;
  Event arrived;
};

// The rows in force at some borders, and the borders and tiles of their queries.
struct FarLists {
  DeviceArray<std::byte> sent;
  const Border* borders = nullptr;
  const QueryTile* tiles = nullptr;
  DeviceArray<int32_t> rows, n_far;
  DeviceArray<float> bias;
};

// Tokens [first, first + n) of some sets. version: of the selector that chose them, 0 for sets that
// nobody else goes by.
struct LinkKey {
  uint64_t version = 0;
  std::vector<size_t> sets;
  int64_t first = 0, n = 0, block = 0;
  bool operator==(const LinkKey&) const = default;
};
// A list: of the clusters of a set, or only of the exempt ones, for window heads.
struct ListedSet {
  size_t set;
  bool exempt_only;
  bool operator==(const ListedSet&) const = default;
};
// Rows listed for the queries of tokens [first, first + n), of which per_tile share a tile.
struct ListKey {
  LinkKey links;
  std::vector<ListedSet> lists;
  int64_t first = 0, n = 0, per_tile = 0, window = 0;
  bool causal = false;
  float scale = 0;
  bool operator==(const ListKey&) const = default;
};

class KeysShared {
 public:
  // The one of a device: it lives as long as somebody holds it.
  static std::shared_ptr<KeysShared> of(Context& context);

  // Those of the key; `link` fills them in where they are not at hand.
  std::shared_ptr<const LinkedSets> links(const LinkKey& key,
                                          const std::function<void(LinkedSets&)>& link);
  std::shared_ptr<const FarLists> lists(const ListKey& key, const std::function<FarLists()>& make);

 private:
  LinkKey links_key_;
  std::shared_ptr<LinkedSets> links_;
  std::vector<std::shared_ptr<LinkedSets>> all_;  // in use, or to be used again
  ListKey lists_key_;
  std::shared_ptr<const FarLists> lists_;
};

}  // namespace sluice::impl::cuda::keys
