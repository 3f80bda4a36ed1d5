// Modes `copy` and `paper` of docs/algorithm.md, section 3: attention among the tokens that stand
// for themselves, in tiles as in attention/dense/dense.cpp. Key j belongs to the token of cluster
// j. The counts m_j(t) differ from query to query, but only by the tokens between the two.

#include "backend/cpu/attention/copy/copy.h"

#include <cmath>

#include "backend/cpu/attention/common/packed.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::copy {
namespace {

// Members of every cluster up to a token of one pass. Counts of all tokens would be quadratic, so
// they are noted at kMostNotes tokens or fewer and counted on from there.
class MemberCounts {
 public:
  // before: (n_clusters or less) members before token `first`.
  MemberCounts(const TokenSet& set, int64_t first, std::vector<float> before, bool notes)
      : set_(set),
        first_(first),
        stride_(std::max(kLeastStride, (set.n_tokens() - first) / kMostNotes + 1)) {
    before.resize(static_cast<size_t>(set.n_clusters));
    for (int64_t t = first; t < set.n_tokens(); ++t) {
      if (notes && (t - first) % stride_ == 0) notes_.push_back(before);
      before[cluster(t)] += 1;
    }
    last_ = std::move(before);
  }

  const std::vector<float>& at_end() const { return last_; }
  size_t cluster(int64_t t) const {
    return static_cast<size_t>(set_.cluster[static_cast<size_t>(t)]);
  }
  // Those of tokens up to and including t, to the first n_clusters of out.
  void up_to(int64_t t, std::vector<float>& out) const {
    const int64_t note = (t - first_) / stride_;
    std::copy(notes_[static_cast<size_t>(note)].begin(), notes_[static_cast<size_t>(note)].end(),
              out.begin());
    for (int64_t i = first_ + note * stride_; i <= t; ++i) out[cluster(i)] += 1;
  }

 private:
  static constexpr int64_t kLeastStride = 1024, kMostNotes = 64;

  const TokenSet& set_;
  int64_t first_, stride_;
  std::vector<std::vector<float>> notes_;  // (n_notes, n_clusters)
  std::vector<float> last_;                // (n_clusters)
};

template <typename T>
class CpuRepsAttention final : public RepsAttention {
 public:
  explicit CpuRepsAttention(const RepsSpec& spec) : spec_(spec), shape_(spec.dtype, spec.head_dim) {
    reset();
  }

  void attend(const AttendRepsArgs& args) override;

  void reset() override {
    heads_.assign(static_cast<size_t>(spec_.n_kv_heads), {});
    counts_.clear();
    n_keys_ = n_counted_ = 0;
  }

  CacheBytes bytes() const override {
    return {
        .exact = 2 * n_keys_ * spec_.n_kv_heads * spec_.head_dim * static_cast<int64_t>(sizeof(T)),
        .clusters = static_cast<int64_t>(counts_.size() * sizeof(float))};
  }

 private:
  struct Head {
    std::vector<T> keys, values;  // (n_keys, head_dim)
  };
  // One pass: query i is the token at tokens[i] and has key number first_key + i.
  struct Pass {
    const AttendRepsArgs& args;
    const MemberCounts& members;
    std::vector<int64_t> tokens;  // (n_new)
    int64_t first_key;
  };

  bool counted() const { return spec_.multiplicity; }
  int64_t n_seen(const Pass& pass, int64_t i) const {
    return spec_.causal ? pass.first_key + i + 1 : n_keys_;
  }
  void keep(const AttendRepsArgs& args);
  // Counts as query i sees them.
  void count(const Pass& pass, int64_t i, std::vector<float>& counts) const;
  void attend_tiles(const Pass& pass) const;
  void visit(const Pass& pass, attention::QueryTile& tile, int64_t first, int64_t n,
             attention::Panels panels) const;
  void attend_rows(const Pass& pass) const;
  void attend_row(const Pass& pass, int64_t i, int64_t kv_head, const float* counts) const;

  RepsSpec spec_;
  attention::TileShape shape_;
  std::vector<Head> heads_;    // (n_kv_heads)
  std::vector<float> counts_;  // (n_keys) members so far
  int64_t n_keys_ = 0;
  int64_t n_counted_ = 0;  // tokens of passes so far
};

template <typename T>
void CpuRepsAttention<T>::attend(const AttendRepsArgs& args) {
  const TokenSet& set = *args.set;
  SLUICE_CHECK(spec_.causal || n_keys_ == 0);
  SLUICE_CHECK(args.first_token == n_counted_);
  n_counted_ = set.n_tokens();
  const int64_t first_key = n_keys_;
  keep(args);
  const MemberCounts members(set, args.first_token, std::move(counts_), counted() && spec_.causal);
  Pass pass{args, members, {}, first_key};
  for (int64_t t = args.first_token; t < set.n_tokens(); ++t)
    if (set.status[static_cast<size_t>(t)] != TokenStatus::kRedundant) pass.tokens.push_back(t);
  SLUICE_CHECK(static_cast<int64_t>(pass.tokens.size()) == args.queries.rows());
  SLUICE_CHECK(set.n_clusters == n_keys_);
  if (args.queries.rows() >= attention::kMinPackedQueries)
    attend_tiles(pass);
  else
    attend_rows(pass);
  counts_ = members.at_end();
}

template <typename T>
void CpuRepsAttention<T>::keep(const AttendRepsArgs& args) {
  SLUICE_CHECK(args.keys.rows() == args.queries.rows());
  n_keys_ += args.keys.rows();
  parallel_each(spec_.n_kv_heads, [&](int64_t kv_head) {
    Head& head = heads_[static_cast<size_t>(kv_head)];
    const int64_t hd = spec_.head_dim;
    for (int64_t i = 0; i < args.keys.rows(); ++i) {
      const T* key = args.keys.row<T>(i) + kv_head * hd;
      const T* value = args.values.row<T>(i) + kv_head * hd;
      head.keys.insert(head.keys.end(), key, key + hd);
      head.values.insert(head.values.end(), value, value + hd);
    }
  });
}

template <typename T>
void CpuRepsAttention<T>::count(const Pass& pass, int64_t i, std::vector<float>& counts) const {
  // Whole blocks: what lies beyond the keys is multiplied by zero.
  counts.assign(static_cast<size_t>(shape_.blocks(n_keys_) * shape_.block_keys), 0.0f);
  if (spec_.causal)
    pass.members.up_to(pass.tokens[static_cast<size_t>(i)], counts);
  else
    std::copy(pass.members.at_end().begin(), pass.members.at_end().end(), counts.begin());
}

template <typename T>
void CpuRepsAttention<T>::attend_tiles(const Pass& pass) const {
  const auto rows_of = [&](int64_t kv_head) {
    const Head& head = heads_[static_cast<size_t>(kv_head)];
    return attention::HeadRows<T>{spec_.head_dim, head.keys.data(), head.values.data()};
  };
  attention::attend_packed<T>(
      {.queries = pass.args.queries,
       .n_batch = 1,
       .n_kv_heads = spec_.n_kv_heads,
       .n_keys = n_keys_,
       .scale = spec_.scale,
       .out = pass.args.out},
      shape_, rows_of,
      [&](attention::QueryTile& tile, int64_t first, int64_t n, attention::Panels panels, int64_t) {
        visit(pass, tile, first, n, panels);
      });
}

template <typename T>
void CpuRepsAttention<T>::visit(const Pass& pass, attention::QueryTile& tile, int64_t first,
                                int64_t n, attention::Panels panels) const {
  thread_local std::vector<float> counts;
  if (counted()) count(pass, first, counts);
  const int64_t end = n_seen(pass, first + n - 1);
  for (int64_t block = 0; block * shape_.block_keys < end; ++block) {
    const int64_t first_key = block * shape_.block_keys;
    int64_t counted_to = pass.tokens[static_cast<size_t>(first)];
    // A block's counts move on with its queries, and are not needed again.
    float* block_counts = counted() ? counts.data() + first_key : nullptr;
    const attention::Mask mask{.n_keys = shape_.block_keys,
                               .end = n_seen(pass, first) - first_key,
                               .end_step = spec_.causal ? 1 : 0};
    tile.visit(panels.from(shape_, block), mask, [&](int64_t i) {
      const int64_t token = pass.tokens[static_cast<size_t>(first + i)];
      while (counted() && spec_.causal && counted_to < token) {
        const int64_t j = static_cast<int64_t>(pass.members.cluster(++counted_to)) - first_key;
        if (j >= 0 && j < shape_.block_keys) block_counts[j] += 1;
      }
      return block_counts;
    });
  }
}

// Decoding, and prompts of a few tokens.
template <typename T>
void CpuRepsAttention<T>::attend_rows(const Pass& pass) const {
  std::vector<float> counts;
  for (int64_t i = 0; i < pass.args.queries.rows(); ++i) {
    if (counted()) count(pass, i, counts);
    parallel_each(spec_.n_kv_heads, [&](int64_t kv_head) {
      attend_row(pass, i, kv_head, counted() ? counts.data() : nullptr);
    });
  }
}

template <typename T>
void CpuRepsAttention<T>::attend_row(const Pass& pass, int64_t i, int64_t kv_head,
                                     const float* counts) const {
  thread_local std::vector<float> scores, query, sums;
  const Head& own = heads_[static_cast<size_t>(kv_head)];
  const int64_t hd = spec_.head_dim, n = n_seen(pass, i);
  const int64_t group = spec_.n_heads / spec_.n_kv_heads;
  scores.resize(static_cast<size_t>(n));
  query.resize(static_cast<size_t>(hd));
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const T* q = pass.args.queries.template row<T>(i) + head * hd;
    std::transform(q, q + hd, query.begin(), [](T x) { return to_float(x); });
    primitives::dot_rows(query.data(), own.keys.data(), hd, n, hd, scores.data());
    primitives::SoftmaxState state{-INFINITY, 0.0f};
    primitives::softmax_step(spec_.scale, n, scores.data(), state, counts);
    sums.assign(static_cast<size_t>(hd), 0.0f);
    primitives::mix_rows(scores.data(), own.values.data(), hd, n, hd, sums.data());
    primitives::scale(1.0f / state.total, hd, sums.data());
    std::transform(sums.begin(), sums.end(), pass.args.out.template row<T>(i) + head * hd,
                   [](float x) { return from_float<T>(x); });
  }
}

}  // namespace

std::unique_ptr<RepsAttention> make_attention(const RepsSpec& spec) {
  if (spec.dtype == DType::kBF16) return std::make_unique<CpuRepsAttention<BFloat16>>(spec);
  return std::make_unique<CpuRepsAttention<float>>(spec);
}

}  // namespace sluice::impl::cpu::copy
