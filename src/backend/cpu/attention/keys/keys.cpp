// Mode `keys` of docs/algorithm.md, section 3. Queries of one block share F(t), so blocks are taken
// in order: what falls behind F joins the sums of its cluster, the panels of the clusters that
// changed are written again, and tiles of queries pass over them and over the near keys.

#include "backend/cpu/attention/keys/keys.h"

#include <cmath>
#include <optional>

#include "backend/cpu/attention/common/near.h"
#include "backend/cpu/attention/keys/clusters.h"
#include "backend/cpu/primitives/rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::keys {
namespace {

// Queries that are not causal have one F in common and come in blocks for the threads' sake only.
constexpr int64_t kBlockNotCausal = 128;

template <typename T>
class CpuKeysAttention final : public KeysAttention {
 public:
  explicit CpuKeysAttention(const KeysSpec& spec) : spec_(spec), shape_(spec.dtype, spec.head_dim) {
    SLUICE_CHECK(static_cast<int64_t>(spec.heads.size()) == spec.n_kv_heads);
    SLUICE_CHECK(!spec.causal || (spec.block > 0 && spec.window % spec.block == 0));
    reset();
  }

  void attend(const AttendKeysArgs& args) override {
    check(args);
    for (Head& head : heads_) head.tokens.begin_pass(args.keys, args.values);
    const int64_t end = n_tokens_ + args.keys.rows();
    if (args.keys.rows() < attention::kMinPackedQueries)
      attend_rows(args, end);
    else
      attend_tiles(args, end);
    n_tokens_ = end;
    n_far_ = first_near(end, end);
  }

  void reset() override {
    heads_.clear();
    for (const HeadKeys& head : spec_.heads)
      heads_.push_back(
          {{static_cast<int64_t>(heads_.size()), spec_.head_dim}, {head, spec_.head_dim}});
    n_tokens_ = n_far_ = 0;
  }

  CacheBytes bytes() const override {
    CacheBytes bytes;
    for (const Head& head : heads_) {
      bytes.exact += head.tokens.bytes();
      bytes.clusters += head.far.bytes();
    }
    return bytes;
  }

 private:
  struct Head {
    attention::HeadTokens<T> tokens;  // from n_far_ on
    FarKeys<T> far;                   // tokens before n_far_
  };

  // F(t) in a pass that ends at `end`.
  int64_t first_near(int64_t t, int64_t end) const {
    if (!spec_.causal) return end;
    return spec_.border(t);
  }
  int64_t query_block() const { return spec_.causal ? spec_.block : kBlockNotCausal; }
  int64_t group() const { return spec_.n_heads / spec_.n_kv_heads; }
  Head& head_at(int64_t kv_head) { return heads_[static_cast<size_t>(kv_head)]; }
  const TokenSet* set_of(const AttendKeysArgs& args, int64_t kv_head) const {
    const HeadKeys& head = spec_.heads[static_cast<size_t>(kv_head)];
    return head.kind == HeadKind::kDense ? nullptr : &args.sets.host()[head.set];
  }

  void check(const AttendKeysArgs& args) const {
    SLUICE_CHECK(spec_.causal || n_tokens_ == 0);
    SLUICE_CHECK(args.queries.rows() == args.keys.rows());
    SLUICE_CHECK(args.values.rows() == args.keys.rows() && args.out.rows() == args.keys.rows());
    SLUICE_CHECK(args.keys.dtype() == spec_.dtype && args.queries.dtype() == spec_.dtype);
    for (const HeadKeys& head : spec_.heads) {
      if (head.kind == HeadKind::kDense) continue;
      SLUICE_CHECK(spec_.causal || head.kind == HeadKind::kClusters);
      SLUICE_CHECK(head.set < args.sets.host().size());
      const int64_t end = n_tokens_ + args.keys.rows();
      SLUICE_CHECK(args.sets.host()[head.set].n_tokens() >= first_near(end, end));
    }
  }

  // Tokens [begin, end) leave the near keys for good.
  void settle(const AttendKeysArgs& args, int64_t kv_head, int64_t begin, int64_t end) {
    Head& head = head_at(kv_head);
    for (int64_t t = begin; t < end; ++t)
      head.far.add(set_of(args, kv_head), t, head.tokens.key(t), head.tokens.value(t));
    head.tokens.drop_before(end);
  }

  void attend_tiles(const AttendKeysArgs& args, int64_t end);
  FarKeys<T> attend_segment(const AttendKeysArgs& args, int64_t kv_head, int64_t first_query,
                            int64_t end_query);
  void attend_rows(const AttendKeysArgs& args, int64_t end);
  void attend_row(const AttendKeysArgs& args, int64_t kv_head, int64_t t, int64_t begin);

  KeysSpec spec_;
  attention::TileShape shape_;
  std::vector<Head> heads_;  // (n_kv_heads)
  int64_t n_tokens_ = 0;     // taken in
  int64_t n_far_ = 0;        // F(n_tokens_)
};

// Where heads alone do not keep the threads busy, each is cut into segments of query blocks; a
// segment begins by adding up what lies before it.
template <typename T>
void CpuKeysAttention<T>::attend_tiles(const AttendKeysArgs& args, int64_t end) {
  const int64_t block = query_block(), first_block = n_tokens_ / block;
  const int64_t n_blocks = (end + block - 1) / block - first_block;
  const bool even = spec_.n_kv_heads % threads() == 0 || spec_.n_kv_heads >= 8 * threads();
  const int64_t n_segments =
      even ? 1 : std::min((4 * threads() + spec_.n_kv_heads - 1) / spec_.n_kv_heads, n_blocks);
  std::vector<std::optional<FarKeys<T>>> after(heads_.size());
  // Long segments first: the last queries see the most keys.
  parallel_each(n_segments * spec_.n_kv_heads, [&](int64_t item) {
    const int64_t kv_head = item % spec_.n_kv_heads;
    const int64_t segment = n_segments - 1 - item / spec_.n_kv_heads;
    const auto start = [&](int64_t s) { return (first_block + s * n_blocks / n_segments) * block; };
    FarKeys<T> far = attend_segment(args, kv_head, std::max(start(segment), n_tokens_),
                                    std::min(start(segment + 1), end));
    if (segment == n_segments - 1) after[static_cast<size_t>(kv_head)] = std::move(far);
  });
  parallel_each(spec_.n_kv_heads, [&](int64_t kv_head) {
    Head& head = head_at(kv_head);
    head.far = std::move(*after[static_cast<size_t>(kv_head)]);
    settle(args, kv_head, first_near(end - 1, end), first_near(end, end));
    head.tokens.keep_pass();
  });
}

// Queries [first_query, end_query) of a key/value head. Returns the sums at the last one's F.
template <typename T>
FarKeys<T> CpuKeysAttention<T>::attend_segment(const AttendKeysArgs& args, int64_t kv_head,
                                               int64_t first_query, int64_t end_query) {
  const attention::HeadTokens<T>& tokens = head_at(kv_head).tokens;
  const TokenSet* set = set_of(args, kv_head);
  const int64_t end = n_tokens_ + args.keys.rows();
  FarKeys<T> far = head_at(kv_head).far;
  FarPanels<T> far_panels(shape_, far.reserve(set, first_near(end_query - 1, end)));
  attention::NearPanels<T> near_panels(
      shape_, query_block(), spec_.causal ? std::min(spec_.window + spec_.block, end) : 0);
  thread_local attention::TileScratch scratch;
  attention::QueryTile tile(shape_, spec_.scale, scratch);
  for (int64_t j = 0; j < far.size(); ++j) far_panels.touch(j);
  int64_t n_far = n_far_;
  for (int64_t block = first_query; block < end_query;) {
    const int64_t next = std::min((block / query_block() + 1) * query_block(), end_query);
    const int64_t border = first_near(block, end);
    for (; n_far < border; ++n_far)
      far_panels.touch(far.add(set, n_far, tokens.key(n_far), tokens.value(n_far)));
    far_panels.update(far);
    for (int64_t first = block; first < next; first += shape_.block_queries) {
      const int64_t n = std::min(shape_.block_queries, next - first), row = first - n_tokens_;
      for (int64_t head = kv_head * group(); head < (kv_head + 1) * group(); ++head) {
        tile.load(args.queries, row, n, head);
        far_panels.visit(tile);
        if (border < first + n) near_panels.visit(tokens, border, first, n, tile);
        tile.store(args.out, row, head);
        for (int64_t i = 0; args.log_sums.defined() && i < n; ++i)
          args.log_sums.row<float>(row + i)[head] = tile.log_sum(i);
      }
    }
    block = next;
  }
  return far;
}

// Decoding, and prompts of a few tokens: row by row on the sums themselves.
template <typename T>
void CpuKeysAttention<T>::attend_rows(const AttendKeysArgs& args, int64_t end) {
  parallel_each(spec_.n_kv_heads, [&](int64_t kv_head) {
    head_at(kv_head).tokens.keep_pass();
    int64_t n_far = n_far_;
    for (int64_t t = n_tokens_; t < end; ++t) {
      const int64_t border = first_near(t, end);
      settle(args, kv_head, n_far, border);
      attend_row(args, kv_head, t, border);
      n_far = border;
    }
    settle(args, kv_head, n_far, first_near(end, end));
  });
}

// The query at t over the far keys as they are and the near ones [begin, t].
template <typename T>
void CpuKeysAttention<T>::attend_row(const AttendKeysArgs& args, int64_t kv_head, int64_t t,
                                     int64_t begin) {
  thread_local std::vector<float> scores, query, sums;
  const Head& own = head_at(kv_head);
  const int64_t hd = spec_.head_dim, n_far = own.far.size();
  const int64_t n_near = std::max<int64_t>(0, t + 1 - begin);
  scores.resize(static_cast<size_t>(std::max(n_far, n_near)));
  query.resize(static_cast<size_t>(hd));
  for (int64_t head = kv_head * group(); head < (kv_head + 1) * group(); ++head) {
    const T* q = args.queries.row<T>(t - n_tokens_) + head * hd;
    std::transform(q, q + hd, query.begin(), [](T x) { return to_float(x); });
    primitives::SoftmaxState state{-INFINITY, 0.0f};
    sums.assign(static_cast<size_t>(hd), 0.0f);
    own.far.dot(query.data(), scores.data());
    primitives::softmax_step(spec_.scale, n_far, scores.data(), state, own.far.counts());
    own.far.mix(scores.data(), sums.data());
    if (n_near > 0) {
      primitives::dot_rows(query.data(), own.tokens.key(begin), hd, n_near, hd, scores.data());
      primitives::scale(primitives::softmax_step(spec_.scale, n_near, scores.data(), state), hd,
                        sums.data());
      primitives::mix_rows(scores.data(), own.tokens.value(begin), hd, n_near, hd, sums.data());
    }
    if (args.log_sums.defined()) args.log_sums.row<float>(t - n_tokens_)[head] = state.log_sum();
    primitives::scale(1.0f / state.total, hd, sums.data());
    std::transform(sums.begin(), sums.end(), args.out.row<T>(t - n_tokens_) + head * hd,
                   [](float x) { return from_float<T>(x); });
  }
}

}  // namespace

std::unique_ptr<KeysAttention> make_attention(const KeysSpec& spec) {
  if (spec.dtype == DType::kBF16) return std::make_unique<CpuKeysAttention<BFloat16>>(spec);
  return std::make_unique<CpuKeysAttention<float>>(spec);
}

}  // namespace sluice::impl::cpu::keys
