#include "backend/cuda/attention/keys/shared.h"

#include <algorithm>
#include <utility>

namespace sluice::impl::cuda::keys {

Links::Links(const std::shared_ptr<Context>& context, LinkArgs args)
    : memory_(context, 6 * args.members.n + 3 * args.members.n_clusters), view_(args.members) {
  int32_t* free = memory_.data();
  for (int32_t** tokens : {&view_.order, &view_.clusters, &view_.marked, &view_.counts_there,
                           &view_.counts, &view_.next})
    *tokens = std::exchange(free, free + view_.n);
  for (int32_t** clusters : {&view_.own, &view_.first_new, &view_.begins})
    *clusters = std::exchange(free, free + view_.n_clusters);
  args.members = view_;
  link_members(*context, args);
}

LinkedSets::LinkedSets(size_t sets)
    : n_sets(sets), pinned(static_cast<int64_t>(sets * sizeof(LinkExtent))) {
  check(cudaEventCreateWithFlags(arrived.to_set(), cudaEventDisableTiming), "event");
}

bool LinkedSets::may_be_long(size_t set) const {
  if (cudaEventQuery(arrived.get()) == cudaSuccess) return extent(set)->longest > kSegment;
  cudaGetLastError();  // clears what it says of an event that is not there yet
  return true;
}

std::shared_ptr<KeysShared> KeysShared::of(Context& context) {
  auto shared = std::static_pointer_cast<KeysShared>(context.shared_by_layers().lock());
  if (shared == nullptr) {
    shared = std::make_shared<KeysShared>();
    context.shared_by_layers() = shared;
  }
  return shared;
}

std::shared_ptr<const LinkedSets> KeysShared::links(const LinkKey& key,
                                                    const std::function<void(LinkedSets&)>& link) {
  if (key.version != 0 && links_ != nullptr && key == links_key_) return links_;
  links_.reset();
  // Pinned memory takes long to come by: who has no user any more is taken again.
  const auto idle = std::find_if(all_.begin(), all_.end(), [&](const auto& linked) {
    return linked.use_count() == 1 && linked->n_sets == key.sets.size();
  });
  std::shared_ptr<LinkedSets> linked =
      idle != all_.end() ? *idle : all_.emplace_back(std::make_shared<LinkedSets>(key.sets.size()));
  linked->wait();
  linked->links.clear();
  link(*linked);
  links_key_ = key;
  links_ = linked;
  return linked;
}

std::shared_ptr<const FarLists> KeysShared::lists(const ListKey& key,
                                                  const std::function<FarLists()>& make) {
  if (key.links.version != 0 && lists_ != nullptr && key == lists_key_) return lists_;
  lists_.reset();
  auto lists = std::make_shared<const FarLists>(make());
  constexpr int64_t kMostKept = int64_t{1} << 23;  // rows, of 8 bytes: they stay over the MLP
  if (key.links.version == 0 || lists->rows.size() > kMostKept) return lists;
  lists_ = lists;
  lists_key_ = key;
  return lists;
}

}  // namespace sluice::impl::cuda::keys
