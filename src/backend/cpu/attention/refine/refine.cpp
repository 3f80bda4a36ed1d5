#include "backend/cpu/attention/refine/refine.h"

#include <algorithm>
#include <utility>

#include "backend/cpu/attention/refine/one.h"
#include "backend/cpu/attention/refine/tiles.h"
#include "core/threads.h"

namespace sluice::impl::cpu::refine {
namespace {

constexpr int64_t kRunQueries = 256;  // at most, of one work item

template <typename T>
class CpuRefineAttention final : public RefineAttention {
 public:
  explicit CpuRefineAttention(const RefineSpec& spec)
      : spec_(spec), plan_(checked(spec)), plans_(spec.heads) {
    reset();
  }

  void attend(const AttendRefineArgs& args) override;
  void attend_exact(const AttendRefineArgs& args) override;
  void set_delta_factor(double factor) override {
    for (size_t i = 0; i < plans_.size(); ++i) plans_[i] = tightened_plan(i, factor);
  }
  void reset() override {
    heads_.clear();
    for (int64_t head = 0; head < spec_.n_kv_heads; ++head)
      heads_.push_back({{head, spec_.head_dim}, {}, {}});
    opened_.clear();
    n_tokens_ = n_settled_ = n_early_ = 0;
  }
  CacheBytes bytes() const override {
    CacheBytes bytes;
    for (const Head& head : heads_) {
      bytes.exact += head.tokens.bytes();
      bytes.clusters += head.settled.bytes();
    }
    return bytes;
  }
  std::vector<int64_t> opened() const override { return opened_; }

 private:
  struct Head {
    attention::HeadTokens<T> tokens;  // from n_settled_ on
    Settled<T> settled;               // tokens before n_early_
    DimGroups dims;                   // once there are clusters
  };

  static const RefineSpec& checked(const RefineSpec& spec) {
    check_refine(spec);
    return spec;
  }
  int64_t border(int64_t t, int64_t n_tokens) const {
    return spec_.causal ? spec_.border(t) : n_tokens / spec_.segment * spec_.segment;
  }
  Head& head_at(int64_t kv_head) { return heads_[static_cast<size_t>(kv_head)]; }
  RefineHead tightened_plan(size_t kv_head, double factor) const {
    const RefineHead& plan = spec_.heads[kv_head];
    SLUICE_CHECK(factor > 0 || plan.kind != HeadKind::kWindow || spec_.keeps_all);
    return plan.tightened(factor);
  }
  // How a head keeps settled tokens: a window head that keeps them all does as a dense one.
  HeadKind kept_kind(int64_t kv_head) const {
    const HeadKind kind = spec_.heads[static_cast<size_t>(kv_head)].kind;
    return kind == HeadKind::kWindow && spec_.keeps_all ? HeadKind::kDense : kind;
  }

  void keep_pass();
  void settle_segments(int64_t end);
  void settle_early(int64_t end);
  void settle_parts(int64_t begin, int64_t end, int64_t n_tokens);
  // The pass from token `first` to its end, or a piece of it that shares a border.
  struct Piece {
    int64_t first, end;
    bool early;  // its queries see what is settled early
  };
  int64_t border(const Piece& piece, int64_t t, int64_t n_tokens) const {
    return piece.early ? spec_.early_border(t) : border(t, n_tokens);
  }
  int64_t parts_before(const Piece& piece, int64_t border) const {
    const int64_t early = piece.early ? border - n_settled_ : 0;
    return (border - early) / spec_.segment + (early > 0 ? early / spec_.early : 0);
  }
  std::vector<QueryRun> runs_of(const Piece& piece) const;
  void attend_piece(const AttendRefineArgs& args, const Piece& piece);
  void attend_runs(const AttendRefineArgs& args, const Piece& piece);
  // One query that sees the tokens before `end`, those from `border` on as near, as these heads do.
  struct Last {
    int64_t border, n_parts, end;
    const std::vector<RefineHead>& plans;  // (n_kv_heads)
    int64_t* opened;                       // (n_heads) grows
  };
  void attend_last(const AttendRefineArgs& args, const Last& last);

  RefineSpec spec_;
  TilePlan plan_;
  std::vector<RefineHead> plans_;  // (n_kv_heads) the spec's heads, tightened
  std::vector<Head> heads_;        // (n_kv_heads)
  std::vector<int64_t> opened_;    // (n_segments, n_heads)
  int64_t n_tokens_ = 0;           // taken in
  int64_t n_settled_ = 0;          // of settled segments: F of the last query
  int64_t n_early_ = 0;            // with what is settled early
};

template <typename T>
void CpuRefineAttention<T>::attend(const AttendRefineArgs& args) {
  const int64_t n = args.queries.rows(), end = n_tokens_ + n;
  SLUICE_CHECK(spec_.causal || n_tokens_ == 0);
  SLUICE_CHECK(args.keys.rows() == n && args.values.rows() == n && args.out.rows() == n);
  SLUICE_CHECK(args.keys.dtype() == spec_.dtype && args.queries.dtype() == spec_.dtype);
  SLUICE_CHECK(end <= spec_.capacity);
  if (n == 0) return;
  for (Head& head : heads_) head.tokens.begin_pass(args.keys, args.values);
  opened_.resize(static_cast<size_t>((end + spec_.segment - 1) / spec_.segment * spec_.n_heads));
  const bool early = spec_.causal && spec_.early > 0 && (n == 1 || spec_.tile == 1);
  for (int64_t first = n_tokens_; first < end;) {
    const int64_t next = spec_.early_border_end(first);
    const Piece piece{first, early ? std::min(end, next) : end, early};
    attend_piece(args, piece);
    first = piece.end;
  }
  keep_pass();
  n_tokens_ = end;
}

// The tokens from n_settled_ on lie side by side from now on.
template <typename T>
void CpuRefineAttention<T>::keep_pass() {
  for (Head& head : heads_) {
    head.tokens.drop_before(n_settled_);
    head.tokens.keep_pass();
  }
}

template <typename T>
void CpuRefineAttention<T>::attend_piece(const AttendRefineArgs& args, const Piece& piece) {
  settle_segments(border(piece.end - 1, piece.end));
  if (piece.early) settle_early(spec_.early_border(piece.first));
  if (args.queries.rows() > 1) return attend_runs(args, piece);
  keep_pass();
  const int64_t begin = border(piece, piece.first, piece.end);
  attend_last(args, {.border = begin,
                     .n_parts = parts_before(piece, begin),
                     .end = piece.end,
                     .plans = plans_,
                     .opened = opened_.data() + piece.first / spec_.segment * spec_.n_heads});
}

// The token stands among the recent ones for as long as its query is answered.
template <typename T>
void CpuRefineAttention<T>::attend_exact(const AttendRefineArgs& args) {
  SLUICE_CHECK(spec_.causal && args.queries.rows() == 1 && n_tokens_ < spec_.capacity);
  std::vector<RefineHead> plans;
  for (size_t i = 0; i < spec_.heads.size(); ++i) plans.push_back(tightened_plan(i, 0));
  for (Head& head : heads_) {
    head.tokens.begin_pass(args.keys, args.values);
    head.tokens.keep_pass();
  }
  std::vector<int64_t> not_counted(static_cast<size_t>(spec_.n_heads));
  attend_last(args, {.border = n_settled_,
                     .n_parts = n_settled_ / spec_.segment,
                     .end = n_tokens_ + 1,
                     .plans = plans,
                     .opened = not_counted.data()});
  for (Head& head : heads_) head.tokens.drop_from(n_tokens_);
}

// Takes the segments before `end` in. Their tokens stay among the recent ones until the pass ends:
// its first queries may see them as near.
template <typename T>
void CpuRefineAttention<T>::settle_segments(int64_t end) {
  if (end == n_settled_) return;
  for (int64_t kv_head = 0; kv_head < spec_.n_kv_heads; ++kv_head)
    head_at(kv_head).settled.truncate(n_settled_ / spec_.segment, n_settled_, kept_kind(kv_head),
                                      spec_);
  settle_parts(n_settled_, end, spec_.segment);
  n_settled_ = n_early_ = end;
}

// The same of early parts of the segment behind them.
template <typename T>
void CpuRefineAttention<T>::settle_early(int64_t end) {
  settle_parts(n_early_, end, spec_.early);
  n_early_ = end;
}

template <typename T>
void CpuRefineAttention<T>::settle_parts(int64_t begin, int64_t end, int64_t n_tokens) {
  const int64_t n_parts = (end - begin) / n_tokens;
  if (n_parts == 0) return;
  if (begin == 0)
    parallel_each(spec_.n_kv_heads, [&](int64_t kv_head) {
      if (kept_kind(kv_head) == HeadKind::kClusters)
        head_at(kv_head).dims = dim_groups_of(spec_, head_at(kv_head).tokens);
    });
  std::vector<Settled<T>> parts(static_cast<size_t>(n_parts * spec_.n_kv_heads));
  parallel_each(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const int64_t kv_head = i / n_parts, first = begin + i % n_parts * n_tokens;
    const Head& head = head_at(kv_head);
    parts[static_cast<size_t>(i)] = settle_part<T>(
        spec_, {kept_kind(kv_head), head.tokens, head.dims}, first, first + n_tokens);
  });
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t kv_head = static_cast<int64_t>(i) / n_parts;
    if (begin == 0 && kept_kind(kv_head) != HeadKind::kWindow)
      head_at(kv_head).settled.reserve(spec_);
    head_at(kv_head).settled.append(std::exchange(parts[i], {}));
  }
}

// Runs of queries that share a border, the longest first: under a causal mask the last queries read
// the most.
template <typename T>
std::vector<QueryRun> CpuRefineAttention<T>::runs_of(const Piece& piece) const {
  std::vector<QueryRun> runs;
  const int64_t most = (kRunQueries + plan_.unit - 1) / plan_.unit * plan_.unit, end = piece.end;
  for (int64_t t = piece.first; t < end;) {
    const int64_t begin = border(piece, t, end);
    const int64_t same = begin + spec_.window + spec_.segment;  // of causal models
    const int64_t next = std::min({(t / most + 1) * most, spec_.causal ? same : end, end});
    for (int64_t kv_head = 0; kv_head < spec_.n_kv_heads; ++kv_head)
      runs.push_back({.first = t,
                      .end = next,
                      .border = begin,
                      .n_parts = parts_before(piece, begin),
                      .first_token = n_tokens_,
                      .n_tokens = end,
                      .kv_head = kv_head});
    t = next;
  }
  std::reverse(runs.begin(), runs.end());
  return runs;
}

template <typename T>
void CpuRefineAttention<T>::attend_runs(const AttendRefineArgs& args, const Piece& piece) {
  const attention::TileShape& shape = plan_.shape;
  std::vector<HeadView<T>> views;
  std::vector<std::vector<std::byte>> keys(heads_.size()), values(heads_.size());
  for (size_t i = 0; i < heads_.size(); ++i) {
    const RefineHead& plan = plans_[i];
    const auto n_blocks = shape.blocks(heads_[i].settled.n_clusters());
    keys[i].resize(static_cast<size_t>(n_blocks * shape.key_bytes));
    values[i].resize(static_cast<size_t>(n_blocks * shape.value_bytes));
    views.push_back(
        {.kind = plan.kind,
         .delta = static_cast<float>(plan.delta * (spec_.tile > 1 ? spec_.tile_factor : 1.0)),
         .tokens = &heads_[i].tokens,
         .settled = &heads_[i].settled,
         .dims = &heads_[i].dims,
         .means = {keys[i].data(), values[i].data()}});
  }
  parallel_each(spec_.n_kv_heads, [&](int64_t kv_head) {
    const Settled<T>& far = head_at(kv_head).settled;
    for (int64_t c = 0; c < far.n_clusters(); ++c)
      attention::put_row(shape, views[static_cast<size_t>(kv_head)].means, c,
                         far.mean_keys.data() + c * spec_.head_dim,
                         far.mean_values.data() + c * spec_.head_dim);
  });
  const std::vector<QueryRun> runs = runs_of(piece);
  parallel_each(static_cast<int64_t>(runs.size()), [&](int64_t i) {
    const QueryRun& run = runs[static_cast<size_t>(i)];
    attend_run(spec_, plan_, args, views[static_cast<size_t>(run.kv_head)], run, opened_.data());
  });
}

template <typename T>
void CpuRefineAttention<T>::attend_last(const AttendRefineArgs& args, const Last& last) {
  parallel_each(spec_.n_heads, [&](int64_t head) {
    const int64_t kv_head = head / (spec_.n_heads / spec_.n_kv_heads);
    const RefineHead& plan = last.plans[static_cast<size_t>(kv_head)];
    last.opened[head] +=
        attend_one<T>(spec_, {.kind = plan.kind,
                              .delta = static_cast<float>(plan.delta),
                              .tokens = &head_at(kv_head).tokens,
                              .settled = &head_at(kv_head).settled,
                              .dims = &head_at(kv_head).dims,
                              .query = args.queries.row<T>(0) + head * spec_.head_dim,
                              .border = last.border,
                              .n_tokens = last.end,
                              .n_parts = last.n_parts,
                              .out = args.out.row<T>(0) + head * spec_.head_dim});
  });
}

}  // namespace

std::unique_ptr<RefineAttention> make_attention(const RefineSpec& spec) {
  if (spec.dtype == DType::kBF16) return std::make_unique<CpuRefineAttention<BFloat16>>(spec);
  return std::make_unique<CpuRefineAttention<float>>(spec);
}

}  // namespace sluice::impl::cpu::refine
