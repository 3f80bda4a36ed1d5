#include "backend/cuda/keys_cache.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/elements.h"

namespace sluice::cuda {
namespace {

void copy(Context& context, const void* from, void* to, int64_t bytes) {
  if (bytes > 0)
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                          context.stream()),
          "copy of the cache");
}

}  // namespace

Links::Links(const std::shared_ptr<Context>& context, const int32_t* cluster, const uint8_t* status,
             int64_t first_token, int64_t n, int64_t n_clusters)
    : first(first_token),
      order(context, n),
      clusters(context, n),
      own(context, n_clusters),
      first_new(context, n_clusters),
      next(context, n),
      counts(context, n) {
  link_members(context, {.cluster = cluster,
                         .status = status,
                         .first = first,
                         .n = n,
                         .n_clusters = n_clusters,
                         .order = order.data(),
                         .clusters = clusters.data(),
                         .own = own.data(),
                         .first_new = first_new.data(),
                         .next = next.data()});
}

KeysCache::KeysCache(std::shared_ptr<Context> context, const KeysSpec& spec)
    : context_(std::move(context)), spec_(spec), bf16_(spec.dtype == DType::kBF16) {
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
      const List list{static_cast<size_t>(set), head.kind == HeadKind::kWindow};
      const auto at = std::find(lists_.begin(), lists_.end(), list);
      view.set = static_cast<int32_t>(set);
      view.list = static_cast<int32_t>(at - lists_.begin());
      if (at == lists_.end()) lists_.push_back(list);
    }
    views.push_back(view);
  }
  heads_ = DeviceArray<HeadView>(context_, std::span<const HeadView>(views));
  n_clusters_.assign(sets_.size(), 0);
  const auto n_sets = static_cast<int64_t>(sets_.size());
  most_ = DeviceArray<int32_t>(context_, n_sets);
  arriving_ = PinnedBytes(std::max<int64_t>(n_sets, 1) * int64_t{sizeof(int32_t)});
  check(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming), "event");
  KeysCache::reset();
}

KeysCache::~KeysCache() {
  if (n_passed_ > 0) cudaEventSynchronize(arrived_);
  cudaEventDestroy(arrived_);
}

void KeysCache::reset() {
  if (n_passed_ > 0) check(cudaEventSynchronize(arrived_), "copy of counts");
  n_tokens_ = base_ = border_ = n_passed_ = 0;
  n_clusters_.assign(sets_.size(), 0);
  check(cudaMemsetAsync(most_.data(), 0, sets_.size() * sizeof(int32_t), context_->stream()),
        "reset");
}

int32_t KeysCache::head_of(size_t index) const {
  for (size_t head = 0; head < spec_.heads.size(); ++head)
    if (spec_.heads[head].kind != HeadKind::kDense && spec_.heads[head].set == sets_[index])
      return static_cast<int32_t>(head);
  SLUICE_CHECK(!"a set that no head goes by");
}

TokenRows KeysCache::tokens() const { return {keys_.data(), values_.data(), capacity_, base_}; }

ClusterRows KeysCache::clusters() const {
  return {cluster_keys_.data(), cluster_values_.data(),
          reinterpret_cast<uint16_t*>(keys_rest_.data()),
          reinterpret_cast<uint16_t*>(values_rest_.data()), cluster_capacity_};
}

// Rows [first, first + n) of every head of (n_kv_heads, capacity, row bytes), in a new array.
DeviceArray<std::byte> KeysCache::moved(const DeviceArray<std::byte>& from, int64_t row,
                                        int64_t capacity, int64_t first, int64_t n,
                                        int64_t new_capacity) const {
  DeviceArray<std::byte> to(context_, spec_.n_kv_heads * new_capacity * row);
  if (n > 0)
    check(cudaMemcpy2DAsync(to.data(), static_cast<size_t>(new_capacity * row),
                            from.data() + first * row, static_cast<size_t>(capacity * row),
                            static_cast<size_t>(n * row), static_cast<size_t>(spec_.n_kv_heads),
                            cudaMemcpyDeviceToDevice, context_->stream()),
          "copy of the cache");
  return to;
}

// Room for what is kept and n_more tokens, and not much more than that.
void KeysCache::reserve_tokens(int64_t n_more) {
  const int64_t kept = n_tokens_ - first_kept(), needed = kept + n_more;
  if (n_tokens_ + n_more - base_ <= capacity_ && capacity_ <= 4 * needed + 1024) return;
  const int64_t capacity = round_up(n_tokens_ > 0 ? needed + needed / 2 : needed, 64);
  const int64_t first = first_kept() - base_;
  keys_ = moved(keys_, row_bytes(), capacity_, first, kept, capacity);
  values_ = moved(values_, row_bytes(), capacity_, first, kept, capacity);
  base_ = first_kept();
  capacity_ = capacity;
}

void KeysCache::reserve_clusters(int64_t n) {
  if (n <= cluster_capacity_) return;
  const int64_t capacity = round_up(n + n / 8, 64);
  const int64_t n_used =
      n_clusters_.empty() ? 0 : *std::max_element(n_clusters_.begin(), n_clusters_.end());
  const auto move = [&](DeviceArray<std::byte>& array, int64_t row) {
    array = moved(array, row, cluster_capacity_, 0, n_used, capacity);
  };
  move(cluster_keys_, row_bytes());
  move(cluster_values_, row_bytes());
  if (bf16_) move(keys_rest_, row_bytes());
  if (bf16_) move(values_rest_, row_bytes());
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

void KeysCache::add(const ConstTensor& keys, const ConstTensor& values) {
  const int64_t n = keys.rows();
  reserve_tokens(n);
  const Shape shape{1, spec_.n_kv_heads, capacity_, spec_.head_dim};
  store_kv(*context_, {.keys = keys,
                       .values = values,
                       .n_tokens = n,
                       .first_position = n_tokens_ - base_,
                       .cache = {Tensor(keys_.data(), spec_.dtype, shape, Device::kCuda),
                                 Tensor(values_.data(), spec_.dtype, shape, Device::kCuda)}});
  n_tokens_ += n;
}

void KeysCache::pass(const DeviceSets& sets, int64_t border) {
  SLUICE_CHECK(n_passed_ == 0 && border >= border_);
  const int64_t n = border - border_;
  if (n == 0 || sets_.empty()) {
    border_ = border;
    return;
  }
  passed_cluster_.reserve(context_, n * static_cast<int64_t>(sets_.size()));
  passed_status_.reserve(context_, n * static_cast<int64_t>(sets_.size()));
  for (size_t i = 0; i < sets_.size(); ++i) {
    int32_t* cluster = passed_cluster_.data() + static_cast<int64_t>(i) * n;
    copy(*context_, sets.cluster(sets_[i]) + border_, cluster, n * int64_t{sizeof(int32_t)});
    copy(*context_, sets.status(sets_[i]) + border_,
         passed_status_.data() + static_cast<int64_t>(i) * n, n);
    count_clusters(*context_, cluster, n, most_.data() + i);
  }
  check(cudaMemcpyAsync(arriving_.data(), most_.data(), sets_.size() * sizeof(int32_t),
                        cudaMemcpyDeviceToHost, context_->stream()),
        "copy of counts");
  check(cudaEventRecord(arrived_, context_->stream()), "copy of counts");
  n_passed_ = n;
}

void KeysCache::settle() {
  if (n_passed_ == 0) return;
  check(cudaEventSynchronize(arrived_), "copy of counts");
  std::vector<int32_t> arrived(sets_.size());
  std::memcpy(arrived.data(), arriving_.data(), arrived.size() * sizeof(int32_t));
  reserve_clusters(*std::max_element(arrived.begin(), arrived.end()));
  for (size_t i = 0; i < sets_.size(); ++i) {
    const int64_t at_set = static_cast<int64_t>(i) * n_passed_;
    const uint8_t* status = passed_status_.data() + at_set;
    const Links links(context_, passed_cluster_.data() + at_set, status, border_, n_passed_,
                      arrived[i]);
    int32_t* cluster_counts = counts_.data() + at(i);
    const MembersView members = links.view(cluster_counts, n_clusters_[i]);
    running_means(*context_, {.members = members,
                              .set = static_cast<int32_t>(i),
                              .n_kv_heads = spec_.n_kv_heads,
                              .head_dim = spec_.head_dim,
                              .block = spec_.block,
                              .bf16 = bf16_,
                              .heads = heads(),
                              .counting_head = head_of(i),
                              .tokens = tokens(),
                              .before = clusters(),
                              .keys = nullptr,
                              .values = nullptr,
                              .settle = true,
                              .counts = links.counts.data()});
    settle_counts(*context_, members, links.counts.data(), status, cluster_counts,
                  exempt_.data() + at(i));
    n_clusters_[i] = arrived[i];
  }
  border_ += n_passed_;
  n_passed_ = 0;
  reserve_tokens(0);
}

CacheBytes KeysCache::bytes() const {
  CacheBytes bytes;
  bytes.exact = 2 * spec_.n_kv_heads * (n_tokens_ - first_kept()) * row_bytes();
  const int64_t mean = spec_.head_dim * int64_t{sizeof(float)};  // bf16: and what it leaves
  for (const HeadKeys& head : spec_.heads)
    for (size_t i = 0; i < sets_.size(); ++i)
      if (head.kind != HeadKind::kDense && sets_[i] == head.set)
        bytes.clusters += n_clusters_[i] * (2 * mean + int64_t{sizeof(int32_t)});
  return bytes;
}

}  // namespace sluice::cuda
