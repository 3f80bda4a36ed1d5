// Mode `keys` of docs/algorithm.md, section 3: near keys exact, far keys as clusters.

#include <algorithm>

#include "backend/reference/reference.h"

namespace sluice::reference {
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
  std::vector<CountedKey> keys_of(const HeadKeys& head, int64_t kv_head, const Range& range,
                                  std::span<const TokenSet> sets) const;
  std::vector<CountedKey> clusters_of(const HeadKeys& head, int64_t kv_head, int64_t border,
                                      const TokenSet& set) const;
  std::vector<double> row_of(const KeptRows& rows, int64_t t, int64_t kv_head) const;

  KeysSpec spec_;
  KeptRows keys_, values_;  // (n_tokens, n_kv_heads * head_dim)
};

// Not causal: everything is far, and every query sees it all.
ReferenceKeysAttention::Range ReferenceKeysAttention::range_of(int64_t t) const {
  if (!spec_.causal) return {keys_.size(), keys_.size()};
  return {spec_.block * (std::max<int64_t>(0, t - spec_.window) / spec_.block), t + 1};
}

std::vector<double> ReferenceKeysAttention::row_of(const KeptRows& rows, int64_t t,
                                                   int64_t kv_head) const {
  std::vector<double> row;
  for (int64_t i = 0; i < spec_.head_dim; ++i)
    row.push_back(load(rows.view(), t, kv_head * spec_.head_dim + i));
  return row;
}

// The clusters of the tokens before the border, exempt ones left out.
std::vector<CountedKey> ReferenceKeysAttention::clusters_of(const HeadKeys& head, int64_t kv_head,
                                                            int64_t border,
                                                            const TokenSet& set) const {
  const auto head_dim = static_cast<size_t>(spec_.head_dim);
  const CountedKey nobody{0, std::vector<double>(head_dim), std::vector<double>(head_dim)};
  std::vector<CountedKey> clusters(static_cast<size_t>(set.n_clusters), nobody);
  for (int64_t i = 0; i < border; ++i) {
    if (set.status[static_cast<size_t>(i)] == TokenStatus::kExempt) continue;
    CountedKey& cluster = clusters[static_cast<size_t>(set.cluster[static_cast<size_t>(i)])];
    const auto key = row_of(keys_, i, kv_head), value = row_of(values_, i, kv_head);
    cluster.count += 1;
    for (size_t c = 0; c < head_dim; ++c) cluster.key[c] += key[c];
    for (size_t c = 0; c < head_dim; ++c) cluster.value[c] += value[c];
  }
  for (CountedKey& cluster : clusters) {  // sums -> means
    for (double& x : cluster.key) x /= std::max(1.0, cluster.count);
    for (double& x : cluster.value) x /= std::max(1.0, cluster.count);
  }
  for (int64_t i = 0; i < border && head.far != FarKey::kCentroid; ++i) {
    if (set.status[static_cast<size_t>(i)] == TokenStatus::kRedundant) continue;
    CountedKey& cluster = clusters[static_cast<size_t>(set.cluster[static_cast<size_t>(i)])];
    cluster.key = row_of(keys_, i, kv_head);
    if (head.far == FarKey::kOwn) cluster.value = row_of(values_, i, kv_head);
  }
  std::erase_if(clusters, [](const CountedKey& cluster) { return cluster.count == 0; });
  return clusters;
}

std::vector<CountedKey> ReferenceKeysAttention::keys_of(const HeadKeys& head, int64_t kv_head,
                                                        const Range& range,
                                                        std::span<const TokenSet> sets) const {
  const bool dense = head.kind == HeadKind::kDense;
  std::vector<CountedKey> seen;
  if (head.kind == HeadKind::kClusters)
    seen = clusters_of(head, kv_head, range.border, sets[head.set]);
  for (int64_t i = 0; i < range.end; ++i)
    if (dense || i >= range.border ||
        sets[head.set].status[static_cast<size_t>(i)] == TokenStatus::kExempt)
      seen.push_back({1, row_of(keys_, i, kv_head), row_of(values_, i, kv_head)});
  return seen;
}

void ReferenceKeysAttention::attend(const AttendKeysArgs& args) {
  const int64_t first = keys_.size();
  SLUICE_CHECK(spec_.causal || first == 0);
  keys_.append(args.keys);
  values_.append(args.values);
  for (const HeadKeys& head : spec_.heads) {
    if (head.kind == HeadKind::kDense) continue;
    SLUICE_CHECK(spec_.causal || head.kind == HeadKind::kClusters);
    SLUICE_CHECK(head.set < args.sets.size() && args.sets[head.set].n_tokens() == keys_.size());
  }
  const int64_t group = spec_.n_heads / spec_.n_kv_heads;
  for (int64_t row = 0; row < args.queries.rows(); ++row)
    for (int64_t kv_head = 0; kv_head < spec_.n_kv_heads; ++kv_head) {
      const auto seen = keys_of(spec_.heads[static_cast<size_t>(kv_head)], kv_head,
                                range_of(first + row), args.sets);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        attend_head({args.queries, row, head, double{spec_.scale}, seen, args.out});
    }
}

}  // namespace

std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec) {
  return std::make_unique<ReferenceKeysAttention>(spec);
}

}  // namespace sluice::reference
