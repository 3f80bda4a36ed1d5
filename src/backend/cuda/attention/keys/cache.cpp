#include "backend/cuda/attention/keys/cache.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/elementwise/elements.h"

namespace sluice::impl::cuda::keys {
namespace {

void copy(Context& context, const void* from, void* to, int64_t bytes) {
  if (bytes > 0)
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                          context.stream()),
          "copy of the cache");
}

}  // namespace

KeysCache::KeysCache(std::shared_ptr<Context> context, const KeysSpec& spec)
    : context_(std::move(context)),
      shared_(KeysShared::of(*context_)),
      spec_(spec),
      bf16_(spec.dtype == DType::kBF16) {
  for (const HeadKeys& head : spec.heads) {
    if (head.kind == HeadKind::kDense)
      has_dense_ = true;
    else if (std::find(sets_.begin(), sets_.end(), head.set) == sets_.end())
      sets_.push_back(head.set);
  }
  std::sort(sets_.begin(), sets_.end());
  std::vector<HeadView> views;
  for (const HeadKeys& head : spec.heads) {
    HeadView view{.set = -1, .list = -1, .far = static_cast<int32_t>(head.far)};
    if (head.kind != HeadKind::kDense) {
      const auto set = std::find(sets_.begin(), sets_.end(), head.set) - sets_.begin();
      const ListedSet list{static_cast<size_t>(set), head.kind == HeadKind::kWindow};
      const auto at = std::find(lists_.begin(), lists_.end(), list);
      view.set = static_cast<int32_t>(set);
      view.list = static_cast<int32_t>(at - lists_.begin());
      if (at == lists_.end()) lists_.push_back(list);
    }
    views.push_back(view);
  }
  heads_ = DeviceArray<HeadView>(context_, std::span<const HeadView>(views));
  n_clusters_.assign(sets_.size(), 0);
}

void KeysCache::reset() {
  n_tokens_ = base_ = border_ = 0;
  n_clusters_.assign(sets_.size(), 0);
  means_ = {};
  passed_ = false;
}

TokenRows KeysCache::tokens(const ConstTensor& keys, const ConstTensor& values) const {
  return {.keys = keys_.data(),
          .values = values_.data(),
          .capacity = capacity_,
          .base = base_,
          .new_keys = keys.bytes(),
          .new_values = values.bytes(),
          .new_key_stride = keys.row_stride(),
          .new_value_stride = values.row_stride(),
          .first = n_tokens_};
}

ClusterRows KeysCache::clusters() const {
  return {cluster_keys_.data(), cluster_values_.data(),
          reinterpret_cast<uint16_t*>(keys_rest_.data()),
          reinterpret_cast<uint16_t*>(values_rest_.data()), cluster_capacity_};
}

// Rows [first, first + n) of every head of (n_kv_heads, capacity, head_dim), in a new array.
DeviceArray<std::byte> KeysCache::moved(const DeviceArray<std::byte>& from, int64_t capacity,
                                        int64_t first, int64_t n, int64_t new_capacity) const {
  const int64_t row = row_bytes();
  DeviceArray<std::byte> to(context_, spec_.n_kv_heads * new_capacity * row);
  if (n > 0)
    check(cudaMemcpy2DAsync(to.data(), static_cast<size_t>(new_capacity * row),
                            from.data() + first * row, static_cast<size_t>(capacity * row),
                            static_cast<size_t>(n * row), static_cast<size_t>(spec_.n_kv_heads),
                            cudaMemcpyDeviceToDevice, context_->stream()),
          "copy of the cache");
  return to;
}

// Room for the tokens [first, end), and not much more than that. Those that are here stay.
void KeysCache::reserve_tokens(int64_t first, int64_t end) {
  const int64_t needed = end - first, n_here = std::max<int64_t>(n_tokens_ - first, 0);
  const bool fits = capacity_ <= 4 * needed + 1024;
  if (fits && end - base_ <= capacity_) return;
  if (!fits || n_here > 0 || needed > capacity_) {
    const int64_t capacity = round_up(needed + std::max<int64_t>(needed / 8, 256), 64);
    const int64_t last = std::exchange(capacity_, 0);  // until both are there
    keys_ = moved(keys_, last, first - base_, n_here, capacity);
    values_ = moved(values_, last, first - base_, n_here, capacity);
    capacity_ = capacity;
  }
  base_ = first;
}

void KeysCache::reserve_clusters(int64_t n) {
  if (n <= cluster_capacity_) return;
  const int64_t capacity = round_up(n + n / 8, 64);
  const int64_t n_used = *std::max_element(n_clusters_.begin(), n_clusters_.end());
  for (DeviceArray<std::byte>* array : {&cluster_keys_, &cluster_values_})
    *array = moved(*array, cluster_capacity_, 0, n_used, capacity);
  for (DeviceArray<std::byte>* array : {&keys_rest_, &values_rest_})
    if (bf16_) *array = moved(*array, cluster_capacity_, 0, n_used, capacity);
  const auto n_sets = static_cast<int64_t>(sets_.size());
  DeviceArray<int32_t> counts(context_, n_sets * capacity);
  DeviceArray<uint8_t> exempt(context_, n_sets * capacity);
  for (size_t i = 0; i < sets_.size(); ++i) {
    const int64_t to = static_cast<int64_t>(i) * capacity;
    copy(*context_, counts_.data() + at(i), counts.data() + to,
         n_clusters_[i] * int64_t{sizeof(int32_t)});
    copy(*context_, exempt_.data() + at(i), exempt.data() + to, n_clusters_[i]);
  }
  counts_ = std::move(counts);
  exempt_ = std::move(exempt);
  cluster_capacity_ = capacity;
}

LinkKey KeysCache::link_key(uint64_t version) const {
  return {version, sets_, means_.first, means_.n, spec_.causal ? spec_.block : means_.n};
}

void KeysCache::link(const selection::DeviceSets& sets, LinkedSets& to) const {
  const LinkKey key = link_key(0);
  to.status = DeviceArray<uint8_t>(context_, static_cast<int64_t>(sets_.size()) * key.n);
  for (size_t i = 0; i < sets_.size(); ++i) {
    MembersView members{};
    members.first = key.first;
    members.n = key.n;
    members.n_clusters = n_clusters_[i] + key.n;
    members.block = static_cast<int32_t>(std::min<int64_t>(key.block, INT32_MAX));
    to.links.emplace_back(
        context_, LinkArgs{.cluster = sets.cluster(sets_[i]) + key.first,
                           .status = sets.status(sets_[i]) + key.first,
                           .n_before = n_clusters_[i],
                           .counts_before = counts(i),
                           .members = members,
                           .kept_status = to.status.data() + static_cast<int64_t>(i) * key.n,
                           .extent = to.extent(i)});
  }
  check(cudaEventRecord(to.arrived.get(), context_->stream()), "counts");
}

const RunningMeans& KeysCache::find_means(const selection::DeviceSets& sets, uint64_t version,
                                          const TokenRows& tokens, int64_t end) {
  SLUICE_CHECK(!passed_ && end >= border_);
  means_ = {};
  means_.first = border_;
  if (sets_.empty() || end == border_) return means_;
  const int64_t n = means_.n = end - border_;
  means_.keys = DeviceArray<std::byte>(context_, spec_.n_kv_heads * n * row_bytes());
  means_.values = DeviceArray<std::byte>(context_, spec_.n_kv_heads * n * row_bytes());
  if (bf16_ && *std::max_element(n_clusters_.begin(), n_clusters_.end()) > 0)
    for (DeviceArray<std::byte>* rest : {&means_.keys_rest, &means_.values_rest})
      *rest = DeviceArray<std::byte>(context_, spec_.n_kv_heads * n * row_bytes());
  means_.linked = shared_->links(link_key(version), [&](LinkedSets& to) { link(sets, to); });
  for (size_t i = 0; i < sets_.size(); ++i)
    running_means(context_, {.members = means_.linked->links[i].view(),
                             .counts_before = counts(i),
                             .before = clusters(),
                             .set = static_cast<int32_t>(i),
                             .n_kv_heads = spec_.n_kv_heads,
                             .head_dim = spec_.head_dim,
                             .bf16 = bf16_,
                             .heads = heads(),
                             .tokens = tokens,
                             .keys = means_.keys.data(),
                             .values = means_.values.data(),
                             .keys_rest = means_.keys_rest.data(),
                             .values_rest = means_.values_rest.data(),
                             .may_be_long = means_.linked->may_be_long(i)});
  return means_;
}

void KeysCache::keep(const ConstTensor& keys, const ConstTensor& values) {
  const int64_t end = n_tokens_ + keys.rows();
  if (!spec_.causal) {  // there is no other pass
    n_tokens_ = end;
    means_ = {};
    return;
  }
  const int64_t border = spec_.border(end), first = has_dense_ ? 0 : border;
  reserve_tokens(first, end);
  const int64_t begin = std::max(first, n_tokens_), n = end - begin;
  const Shape shape{1, spec_.n_kv_heads, capacity_, spec_.head_dim};
  if (n > 0)
    elementwise::store_kv(*context_,
                          {.keys = keys.rows_from(begin - n_tokens_, n),
                           .values = values.rows_from(begin - n_tokens_, n),
                           .n_tokens = n,
                           .first_position = begin - base_,
                           .cache = {Tensor(keys_.data(), spec_.dtype, shape, Device::kCuda),
                                     Tensor(values_.data(), spec_.dtype, shape, Device::kCuda)}});
  n_tokens_ = end;
  SLUICE_CHECK(sets_.empty() || border == border_ + means_.n);
  if (means_.n == 0) {
    border_ = border;
    return;
  }
  passed_ = true;
}

void KeysCache::settle() {
  if (!passed_) return;
  means_.linked->wait();
  passed_ = false;
  std::vector<int64_t> n_clusters;
  for (size_t i = 0; i < sets_.size(); ++i)
    n_clusters.push_back(std::max(n_clusters_[i], int64_t{means_.linked->extent(i)->largest} + 1));
  reserve_clusters(*std::max_element(n_clusters.begin(), n_clusters.end()));
  for (size_t i = 0; i < sets_.size(); ++i)
    settle_clusters(*context_,
                    {.members = means_.linked->links[i].view(),
                     .status = means_.linked->status.data() + static_cast<int64_t>(i) * means_.n,
                     .set = static_cast<int32_t>(i),
                     .n_kv_heads = spec_.n_kv_heads,
                     .head_dim = spec_.head_dim,
                     .bf16 = bf16_,
                     .heads = heads(),
                     .keys = means_.keys.data(),
                     .values = means_.values.data(),
                     .keys_rest = means_.keys_rest.data(),
                     .values_rest = means_.values_rest.data(),
                     .n_before = n_clusters_[i],
                     .to = clusters(),
                     .counts = counts_.data() + at(i),
                     .exempt = exempt_.data() + at(i)});
  n_clusters_ = n_clusters;
  border_ += means_.n;
  means_ = {};
}

CacheBytes KeysCache::bytes() const {
  CacheBytes bytes;
  const int64_t first = has_dense_ ? 0 : border_;
  bytes.exact = 2 * spec_.n_kv_heads * (n_tokens_ - first) * row_bytes();
  const int64_t mean = spec_.head_dim * int64_t{sizeof(float)};  // bf16: and what it leaves
  for (const HeadKeys& head : spec_.heads)
    for (size_t i = 0; i < sets_.size(); ++i)
      if (head.kind != HeadKind::kDense && sets_[i] == head.set)
        bytes.clusters += n_clusters_[i] * (2 * mean + int64_t{sizeof(int32_t)});
  return bytes;
}

}  // namespace sluice::impl::cuda::keys
