// Mode `keys` of docs/algorithm.md, section 3: near keys exact, far keys as clusters.

#include <algorithm>

#include "backend/reference/attention/attention.h"

namespace sluice::impl::reference::attention {
namespace {

class ReferenceKeysAttention final : public KeysAttention {
 public:
  explicit ReferenceKeysAttention(const KeysSpec& spec) : spec_(spec) {
    SLUICE_CHECK(static_cast<int64_t>(spec.heads.size()) == spec.n_kv_heads);
    SLUICE_CHECK(!spec.causal || (spec.block > 0 && spec.window % spec.block == 0));
  }

  void attend(const AttendKeysArgs& args) override;
  void reset() override {
    keys_.clear();
    values_.clear();
  }
  CacheBytes bytes() const override { return {keys_.bytes() + values_.bytes(), 0}; }

 private:
  struct Range {
    int64_t border;  // F(t): tokens before it are far
    int64_t end;     // of what the query sees
  };
  Range range_of(int64_t t) const;
  void attend_kv_head(const AttendKeysArgs& args, int64_t first, int64_t kv_head) const;

  KeysSpec spec_;
  KeptRows keys_, values_;  // (n_tokens, n_kv_heads * head_dim)
};

// Not causal: everything is far, and every query sees it all.
ReferenceKeysAttention::Range ReferenceKeysAttention::range_of(int64_t t) const {
  if (!spec_.causal) return {keys_.size(), keys_.size()};
  return {spec_.border(t), t + 1};
}

// The clusters of the tokens before the border, exempt ones left out. `tokens` are all keys.
std::vector<CountedKey> far_clusters(std::span<const CountedKey> tokens, int64_t border,
                                     const TokenSet& set, FarKey far) {
  const size_t head_dim = tokens[0].key.size(), end = static_cast<size_t>(border);
  const CountedKey nobody{0, std::vector<double>(head_dim), std::vector<double>(head_dim)};
  std::vector<CountedKey> clusters(static_cast<size_t>(set.n_clusters), nobody);
  for (size_t i = 0; i < end; ++i) {
    if (set.status[i] == TokenStatus::kExempt) continue;
    CountedKey& cluster = clusters[static_cast<size_t>(set.cluster[i])];
    cluster.count += 1;
    for (size_t c = 0; c < head_dim; ++c) cluster.key[c] += tokens[i].key[c];
    for (size_t c = 0; c < head_dim; ++c) cluster.value[c] += tokens[i].value[c];
  }
  for (CountedKey& cluster : clusters) {  // sums -> means
    for (double& x : cluster.key) x /= std::max(1.0, cluster.count);
    for (double& x : cluster.value) x /= std::max(1.0, cluster.count);
  }
  for (size_t i = 0; i < end && far != FarKey::kCentroid; ++i) {
    if (set.status[i] == TokenStatus::kRedundant) continue;
    CountedKey& cluster = clusters[static_cast<size_t>(set.cluster[i])];
    cluster.key = tokens[i].key;
    if (far == FarKey::kOwn) cluster.value = tokens[i].value;
  }
  std::erase_if(clusters, [](const CountedKey& cluster) { return cluster.count == 0; });
  return clusters;
}

void ReferenceKeysAttention::attend_kv_head(const AttendKeysArgs& args, int64_t first,
                                            int64_t kv_head) const {
  const HeadKeys& head = spec_.heads[static_cast<size_t>(kv_head)];
  const auto tokens = counted_keys(keys_, values_, kv_head, spec_.head_dim);
  const auto is_near = [&](int64_t i, int64_t border) {
    return head.kind == HeadKind::kDense || i >= border ||
           args.sets.host()[head.set].status[static_cast<size_t>(i)] == TokenStatus::kExempt;
  };
  const int64_t group = spec_.n_heads / spec_.n_kv_heads;
  std::vector<CountedKey> clusters;
  int64_t border_of_clusters = 0;  // none are before it
  for (int64_t row = 0; row < args.queries.rows(); ++row) {
    const auto [border, end] = range_of(first + row);
    if (head.kind == HeadKind::kClusters && border != border_of_clusters) {
      clusters = far_clusters(tokens, border, args.sets.host()[head.set], head.far);
      border_of_clusters = border;
    }
    std::vector<const CountedKey*> seen;
    for (const CountedKey& cluster : clusters) seen.push_back(&cluster);
    for (int64_t i = 0; i < end; ++i)
      if (is_near(i, border)) seen.push_back(&tokens[static_cast<size_t>(i)]);
    for (int64_t q = kv_head * group; q < (kv_head + 1) * group; ++q) {
      const double log_sum =
          attend_head({args.queries, row, q, double{spec_.scale}, seen, args.out});
      if (args.log_sums.defined()) args.log_sums.row<float>(row)[q] = static_cast<float>(log_sum);
    }
  }
}

void ReferenceKeysAttention::attend(const AttendKeysArgs& args) {
  const int64_t first = keys_.size();
  SLUICE_CHECK(spec_.causal || first == 0);
  keys_.append(args.keys);
  values_.append(args.values);
  for (const HeadKeys& head : spec_.heads) {
    if (head.kind == HeadKind::kDense) continue;
    SLUICE_CHECK(spec_.causal || head.kind == HeadKind::kClusters);
    SLUICE_CHECK(head.set < args.sets.host().size());
    SLUICE_CHECK(args.sets.host()[head.set].n_tokens() >= range_of(keys_.size()).border);
  }
  for (int64_t kv_head = 0; kv_head < spec_.n_kv_heads; ++kv_head)
    attend_kv_head(args, first, kv_head);
}

}  // namespace

std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec) {
  return std::make_unique<ReferenceKeysAttention>(spec);
}

}  // namespace sluice::impl::reference::attention
