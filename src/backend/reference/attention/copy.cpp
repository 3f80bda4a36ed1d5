// Modes `copy` and `paper` of docs/algorithm.md, section 3: attention among the tokens that stand
// for themselves. They are numbered by position, so kept row j is the token of cluster j.

#include "backend/reference/attention/attention.h"

namespace sluice::impl::reference::attention {
namespace {

// Positions of the tokens that stand for themselves, by cluster number.
std::vector<int64_t> own_tokens(const TokenSet& set) {
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < set.n_tokens(); ++t)
    if (set.status[static_cast<size_t>(t)] != TokenStatus::kRedundant) tokens.push_back(t);
  return tokens;
}

class ReferenceRepsAttention final : public RepsAttention {
 public:
  explicit ReferenceRepsAttention(const RepsSpec& spec) : spec_(spec) {}

  void attend(const AttendRepsArgs& args) override;
  void reset() override {
    keys_.clear();
    values_.clear();
  }
  CacheBytes bytes() const override { return {keys_.bytes() + values_.bytes(), 0}; }

 private:
  RepsSpec spec_;
  KeptRows keys_, values_;  // (n_clusters, n_kv_heads * head_dim)
};

void ReferenceRepsAttention::attend(const AttendRepsArgs& args) {
  const TokenSet& set = *args.set;
  const int64_t first = keys_.size();
  SLUICE_CHECK(spec_.causal || first == 0);
  keys_.append(args.keys);
  values_.append(args.values);
  const std::vector<int64_t> tokens = own_tokens(set);
  SLUICE_CHECK(static_cast<int64_t>(tokens.size()) == keys_.size());
  SLUICE_CHECK(args.queries.rows() == 0 || tokens[static_cast<size_t>(first)] >= args.first_token);

  const int64_t group = spec_.n_heads / spec_.n_kv_heads;
  for (int64_t kv_head = 0; kv_head < spec_.n_kv_heads; ++kv_head) {
    std::vector<CountedKey> keys = counted_keys(keys_, values_, kv_head, spec_.head_dim);
    std::vector<const CountedKey*> all;
    for (const CountedKey& key : keys) all.push_back(&key);
    for (int64_t row = 0; row < args.queries.rows(); ++row) {
      const int64_t t = tokens[static_cast<size_t>(first + row)];
      const int64_t last = spec_.causal ? t : set.n_tokens() - 1;
      const int64_t n_seen = spec_.causal ? first + row + 1 : keys_.size();
      if (spec_.multiplicity) {
        for (CountedKey& key : keys) key.count = 0;
        for (int64_t i = 0; i <= last; ++i)
          keys[static_cast<size_t>(set.cluster[static_cast<size_t>(i)])].count += 1;
      }
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        attend_head({args.queries, row, head, double{spec_.scale},
                     std::span(all).first(static_cast<size_t>(n_seen)), args.out});
    }
  }
}

}  // namespace

std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec) {
  return std::make_unique<ReferenceRepsAttention>(spec);
}

}  // namespace sluice::impl::reference::attention
