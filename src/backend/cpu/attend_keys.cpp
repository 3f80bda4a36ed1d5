// Mode `keys` of docs/algorithm.md, section 3. Queries of one block share F(t), so blocks are taken
// in order: what falls behind F joins the sums of its cluster, the panels of the clusters that
// changed are written again, and tiles of queries pass over them and over the near keys.

#include "backend/cpu/attend_keys.h"

#include <cmath>
#include <optional>

#include "backend/cpu/attend_clusters.h"
#include "backend/cpu/rows.h"
#include "core/threads.h"

namespace sluice::cpu {
namespace {

// Queries that are not causal have one F in common and come in blocks for the threads' sake only.
constexpr int64_t kBlockNotCausal = 512;

// Keys and values of one key/value head: the recent ones of earlier passes, then this pass's.
template <typename T>
struct HeadTokens {
  const T* key(int64_t t) const {
    return t < first_new ? recent_keys + (t - first_recent) * head_dim
                         : keys.row<T>(t - first_new) + head * head_dim;
  }
  const T* value(int64_t t) const {
    return t < first_new ? recent_values + (t - first_recent) * head_dim
                         : values.row<T>(t - first_new) + head * head_dim;
  }

  const T* recent_keys;
  const T* recent_values;
  int64_t first_recent, first_new;
  ConstTensor keys, values;  // of this pass
  int64_t head, head_dim;
};

// Packed near keys: a ring of blocks that start at multiples of their size.
template <typename T>
class NearPanels {
 public:
  NearPanels(const TileShape& shape, int64_t block, int64_t span)
      : shape_(shape),
        n_keys_(block <= shape.block_keys ? shape.block_keys / block * block
                                          : ceil_div(block, ceil_div(block, shape.block_keys))),
        n_slots_(span / n_keys_ + 2),
        keys_(static_cast<size_t>(n_slots_ * shape.key_bytes)),
        values_(static_cast<size_t>(n_slots_ * shape.value_bytes)) {}

  // The queries of `tile` stand at positions from `first` on and see keys [begin, themselves].
  void visit(const HeadTokens<T>& tokens, QueryTile& tile, int64_t begin, int64_t first,
             int64_t n) {
    const int64_t end = first + n;
    for (int64_t i = begin / n_keys_; i * n_keys_ < end; ++i) {
      const int64_t first_key = i * n_keys_;
      fill(tokens, std::max(begin, first_key), std::min(end, first_key + n_keys_));
      tile.visit(panels().from(shape_, i % n_slots_), {.n_keys = n_keys_,
                                                       .begin = begin - first_key,
                                                       .end = first + 1 - first_key,
                                                       .end_step = 1});
    }
  }

 private:
  static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
  Panels panels() { return {keys_.data(), values_.data()}; }

  // Packs tokens [begin, end) of one block, those that are not there yet.
  void fill(const HeadTokens<T>& tokens, int64_t begin, int64_t end) {
    for (int64_t t = std::max(begin, filled_); t < end; ++t)
      put_row(shape_, panels(), t / n_keys_ % n_slots_ * shape_.block_keys + t % n_keys_,
              tokens.key(t), tokens.value(t));
    filled_ = std::max(filled_, end);
  }

  const TileShape& shape_;
  int64_t n_keys_;   // of a block: whole blocks of queries, or equal parts of one
  int64_t n_slots_;  // for a span of keys that begins and ends within a block
  int64_t filled_ = 0;
  std::vector<std::byte> keys_, values_;
};

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
    const int64_t end = n_tokens_ + args.keys.rows();
    if (args.keys.rows() < kMinPackedQueries)
      attend_rows(args, end);
    else
      attend_tiles(args, end);
    n_tokens_ = end;
    first_recent_ = first_near(end, end);
  }

  void reset() override {
    heads_.clear();
    for (const HeadKeys& head : spec_.heads) heads_.push_back({{head, spec_.head_dim}, {}, {}});
    n_tokens_ = first_recent_ = 0;
  }

  CacheBytes bytes() const override {
    CacheBytes bytes;
    for (const Head& head : heads_) {
      bytes.exact += static_cast<int64_t>((head.keys.size() + head.values.size()) * sizeof(T));
      bytes.clusters += head.far.bytes();
    }
    return bytes;
  }

 private:
  struct Head {
    FarKeys<T> far;               // tokens before first_recent_
    std::vector<T> keys, values;  // (n_recent, head_dim)
  };

  // F(t) in a pass that ends at `end`.
  int64_t first_near(int64_t t, int64_t end) const {
    if (!spec_.causal) return end;
    return spec_.block * (std::max<int64_t>(0, t - spec_.window) / spec_.block);
  }
  int64_t query_block() const { return spec_.causal ? spec_.block : kBlockNotCausal; }
  int64_t group() const { return spec_.n_heads / spec_.n_kv_heads; }
  Head& head_at(int64_t kv_head) { return heads_[static_cast<size_t>(kv_head)]; }
  const TokenSet* set_of(const AttendKeysArgs& args, int64_t kv_head) const {
    const HeadKeys& head = spec_.heads[static_cast<size_t>(kv_head)];
    return head.kind == HeadKind::kDense ? nullptr : &args.sets[head.set];
  }

  void check(const AttendKeysArgs& args) const {
    SLUICE_CHECK(spec_.causal || n_tokens_ == 0);
    SLUICE_CHECK(args.queries.rows() == args.keys.rows());
    SLUICE_CHECK(args.keys.dtype() == spec_.dtype && args.queries.dtype() == spec_.dtype);
    for (const HeadKeys& head : spec_.heads) {
      if (head.kind == HeadKind::kDense) continue;
      SLUICE_CHECK(spec_.causal || head.kind == HeadKind::kClusters);
      SLUICE_CHECK(head.set < args.sets.size());
      SLUICE_CHECK(args.sets[head.set].n_tokens() == n_tokens_ + args.keys.rows());
    }
  }

  HeadTokens<T> tokens_of(const AttendKeysArgs& args, int64_t kv_head) {
    Head& head = head_at(kv_head);
    return {.recent_keys = head.keys.data(),
            .recent_values = head.values.data(),
            .first_recent = first_recent_,
            .first_new = n_tokens_,
            .keys = args.keys,
            .values = args.values,
            .head = kv_head,
            .head_dim = spec_.head_dim};
  }

  // Leaves tokens [from, end) as the recent ones.
  void keep_recent(const AttendKeysArgs& args, int64_t kv_head, int64_t from, int64_t end) {
    const HeadTokens<T> tokens = tokens_of(args, kv_head);
    Head& head = head_at(kv_head);
    const int64_t n_old = std::min(from, n_tokens_) - first_recent_;
    const int64_t hd = spec_.head_dim;
    head.keys.erase(head.keys.begin(), head.keys.begin() + n_old * hd);
    head.values.erase(head.values.begin(), head.values.begin() + n_old * hd);
    for (int64_t t = std::max(from, n_tokens_); t < end; ++t) {
      head.keys.insert(head.keys.end(), tokens.key(t), tokens.key(t) + hd);
      head.values.insert(head.values.end(), tokens.value(t), tokens.value(t) + hd);
    }
  }

  void attend_tiles(const AttendKeysArgs& args, int64_t end);
  FarKeys<T> attend_segment(const AttendKeysArgs& args, int64_t kv_head, int64_t first_query,
                            int64_t end_query);
  void attend_rows(const AttendKeysArgs& args, int64_t end);
  void attend_row(const AttendKeysArgs& args, int64_t kv_head, int64_t t, int64_t begin);

  KeysSpec spec_;
  TileShape shape_;
  std::vector<Head> heads_;  // (n_kv_heads)
  int64_t n_tokens_ = 0;     // taken in
  int64_t first_recent_ = 0;
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
  const int64_t border = first_near(end, end);
  parallel_each(spec_.n_kv_heads, [&](int64_t kv_head) {
    const HeadTokens<T> tokens = tokens_of(args, kv_head);
    FarKeys<T>& far = *after[static_cast<size_t>(kv_head)];
    for (int64_t t = first_near(end - 1, end); t < border; ++t)
      far.add(set_of(args, kv_head), t, tokens.key(t), tokens.value(t));
    head_at(kv_head).far = std::move(far);
    keep_recent(args, kv_head, border, end);
  });
}

// Queries [first_query, end_query) of a key/value head. Returns the sums at the last one's F.
template <typename T>
FarKeys<T> CpuKeysAttention<T>::attend_segment(const AttendKeysArgs& args, int64_t kv_head,
                                               int64_t first_query, int64_t end_query) {
  const HeadTokens<T> tokens = tokens_of(args, kv_head);
  const int64_t end = n_tokens_ + args.keys.rows();
  FarKeys<T> far = head_at(kv_head).far;
  FarPanels<T> far_panels(shape_,
                          far.reserve(set_of(args, kv_head), first_near(end_query - 1, end)));
  NearPanels<T> near_panels(shape_, query_block(), spec_.causal ? spec_.window + spec_.block : 0);
  thread_local TileScratch scratch;
  QueryTile tile(shape_, spec_.scale, scratch);
  for (int64_t j = 0; j < far.size(); ++j) far_panels.touch(j);
  int64_t n_far = first_recent_;
  for (int64_t block = first_query; block < end_query;) {
    const int64_t next = std::min((block / query_block() + 1) * query_block(), end_query);
    const int64_t border = first_near(block, end);
    for (; n_far < border; ++n_far)
      far_panels.touch(
          far.add(set_of(args, kv_head), n_far, tokens.key(n_far), tokens.value(n_far)));
    far_panels.update(far);
    for (int64_t first = block; first < next; first += shape_.block_queries) {
      const int64_t n = std::min(shape_.block_queries, next - first), row = first - n_tokens_;
      for (int64_t head = kv_head * group(); head < (kv_head + 1) * group(); ++head) {
        tile.load(args.queries, row, n, head);
        far_panels.visit(tile);
        if (border < first + n) near_panels.visit(tokens, tile, border, first, n);
        tile.store(args.out, row, head);
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
    keep_recent(args, kv_head, first_recent_, end);
    Head& head = head_at(kv_head);
    const int64_t hd = spec_.head_dim;
    int64_t n_far = first_recent_;
    const auto add_until = [&](int64_t border) {
      for (; n_far < border; ++n_far) {
        const int64_t at = (n_far - first_recent_) * hd;
        head.far.add(set_of(args, kv_head), n_far, head.keys.data() + at, head.values.data() + at);
      }
    };
    for (int64_t t = n_tokens_; t < end; ++t) {
      const int64_t border = first_near(t, end);
      add_until(border);
      attend_row(args, kv_head, t, border);
    }
    add_until(first_near(end, end));
    const int64_t n_old = (n_far - first_recent_) * hd;
    head.keys.erase(head.keys.begin(), head.keys.begin() + n_old);
    head.values.erase(head.values.begin(), head.values.begin() + n_old);
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
  const int64_t first = (begin - first_recent_) * hd;
  scores.resize(static_cast<size_t>(std::max(n_far, n_near)));
  query.resize(static_cast<size_t>(hd));
  for (int64_t head = kv_head * group(); head < (kv_head + 1) * group(); ++head) {
    const T* q = args.queries.row<T>(t - n_tokens_) + head * hd;
    std::transform(q, q + hd, query.begin(), [](T x) { return to_float(x); });
    SoftmaxState state{-INFINITY, 0.0f};
    sums.assign(static_cast<size_t>(hd), 0.0f);
    own.far.dot(query.data(), scores.data());
    softmax_step(spec_.scale, n_far, scores.data(), state, own.far.counts());
    own.far.mix(scores.data(), sums.data());
    dot_rows(query.data(), own.keys.data() + first, hd, n_near, hd, scores.data());
    const float correction = softmax_step(spec_.scale, n_near, scores.data(), state);
    scale(correction, hd, sums.data());
    mix_rows(scores.data(), own.values.data() + first, hd, n_near, hd, sums.data());
    scale(1.0f / state.total, hd, sums.data());
    std::transform(sums.begin(), sums.end(), args.out.row<T>(t - n_tokens_) + head * hd,
                   [](float x) { return from_float<T>(x); });
  }
}

}  // namespace

std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec) {
  if (spec.dtype == DType::kBF16) return std::make_unique<CpuKeysAttention<BFloat16>>(spec);
  return std::make_unique<CpuKeysAttention<float>>(spec);
}

}  // namespace sluice::cpu
