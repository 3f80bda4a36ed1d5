#include "backend/cpu/attention/refine/tiles.h"

#include <atomic>
#include <cmath>

#include "backend/cpu/attention/refine/estimate.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::refine {
namespace {

// Of one thread, kept for its next run.
struct TilesScratch {
  std::vector<attention::TileScratch> tiles;        // (blocks of a unit)
  std::vector<std::byte> near_keys, near_values;    // packed sinks, then packed near keys
  std::vector<std::byte> block_keys, block_values;  // one block of gathered members
  std::vector<float> scores;                        // (unit, stride) of means
  std::vector<float> masses, errors;                // (stride)
  std::vector<float> asks, counts;                  // (decision tiles of a unit, stride)
  std::vector<float> any;                           // (stride) what some tile opens
  std::vector<float> query;                         // (head_dim)
};

struct Gathered {
  int64_t cluster, begin, n;  // columns [begin, begin + n) of the block
};

template <typename T>
class RunReader {
 public:
  RunReader(const RefineSpec& spec, const TilePlan& plan, const AttendRefineArgs& args,
            const HeadView<T>& head, const QueryRun& run, int64_t* opened, TilesScratch& scratch)
      : spec_(spec),
        plan_(plan),
        shape_(plan.shape),
        args_(args),
        head_(head),
        run_(run),
        opened_(opened),
        s_(scratch),
        n_sinks_(run.border > 0 ? spec.sinks : 0),
        sink_blocks_(shape_.blocks(n_sinks_)),
        n_clusters_(head.settled->clusters_of(run.n_parts)),
        stride_(shape_.blocks(n_clusters_) * shape_.block_keys + 16) {
    pack_near();
    // What no row is put into must be finite, whatever the last run had.
    s_.block_keys.assign(static_cast<size_t>(shape_.key_bytes), std::byte{0});
    s_.block_values.assign(static_cast<size_t>(shape_.value_bytes), std::byte{0});
    s_.scores.resize(
        static_cast<size_t>(attention::round_up(plan.unit, shape_.block_queries) * stride_));
    s_.masses.resize(static_cast<size_t>(stride_));
    s_.errors.resize(static_cast<size_t>(stride_));
    s_.query.resize(static_cast<size_t>(spec.head_dim));
    s_.tiles.resize(std::max(s_.tiles.size(), static_cast<size_t>(shape_blocks(plan.unit))));
  }

  // Queries at [first, end) of one query head, all of one unit.
  void attend_unit(int64_t query_head, int64_t first, int64_t end) {
    query_head_ = query_head;
    first_ = first;
    end_ = end;
    tiles_.clear();
    for (int64_t b = 0; b < shape_blocks(end - first); ++b) {
      attention::QueryTile& tile =
          tiles_.emplace_back(shape_, spec_.scale, s_.tiles[static_cast<size_t>(b)]);
      tile.load(args_.queries, first_of(b) - run_.first_token, rows_of(b), query_head);
      visit_near(tile, first_of(b));
    }
    if (n_clusters_ > 0) {
      decide();
      visit_means();
      visit_opened();
    }
    if (head_.kind == HeadKind::kDense) visit_settled();
    for (size_t b = 0; b < tiles_.size(); ++b)
      tiles_[b].store(args_.out, first_of(static_cast<int64_t>(b)) - run_.first_token, query_head);
  }

 private:
  int64_t shape_blocks(int64_t n) const {
    return (n + shape_.block_queries - 1) / shape_.block_queries;
  }
  int64_t first_of(int64_t block) const { return first_ + block * shape_.block_queries; }
  int64_t rows_of(int64_t block) const {
    return std::min(shape_.block_queries, end_ - first_of(block));
  }
  // The decision tile of the query at t, counted within the unit.
  int64_t tile_of(int64_t t) const {
    return plan_.mixed ? t / spec_.tile - first_ / spec_.tile : 0;
  }
  int64_t n_tiles() const { return tile_of(end_ - 1) + 1; }
  attention::Panels near() { return {s_.near_keys.data(), s_.near_values.data()}; }
  attention::Panels block() { return {s_.block_keys.data(), s_.block_values.data()}; }
  int64_t near_end() const { return spec_.causal ? run_.end : run_.n_tokens; }

  void pack_near();
  void visit_near(attention::QueryTile& tile, int64_t first);
  void decide();
  void visit_means();
  void visit_opened();
  void visit_settled();
  void gather(int64_t cluster, int64_t row, int64_t n);
  void visit_gathered();
  Squares query_squares(int64_t t);
  void count(int64_t t, int64_t n) {
    std::atomic_ref<int64_t>(opened_[t / spec_.segment * spec_.n_heads + query_head_])
        .fetch_add(n, std::memory_order_relaxed);
  }

  const RefineSpec& spec_;
  const TilePlan& plan_;
  const attention::TileShape& shape_;
  const AttendRefineArgs& args_;
  const HeadView<T>& head_;
  const QueryRun& run_;
  int64_t* opened_;
  TilesScratch& s_;
  int64_t n_sinks_, sink_blocks_;  // that are settled
  int64_t n_clusters_;             // visible
  int64_t stride_;                 // of rows of clusters, not a power of two
  int64_t query_head_ = 0, first_ = 0, end_ = 0;
  std::vector<attention::QueryTile> tiles_;
  std::vector<Gathered> gathered_;
  int64_t n_gathered_ = 0;  // columns of the block in use
};

// Blocks of near keys begin at the border, so that a query's arithmetic depends on its own
// position and not on the pass.
template <typename T>
void RunReader<T>::pack_near() {
  const int64_t n_blocks = sink_blocks_ + shape_.blocks(near_end() - run_.border);
  s_.near_keys.assign(static_cast<size_t>(n_blocks * shape_.key_bytes), std::byte{0});
  s_.near_values.assign(static_cast<size_t>(n_blocks * shape_.value_bytes), std::byte{0});
  for (int64_t i = 0; i < n_sinks_; ++i)
    attention::put_row(shape_, near(), i, head_.settled->keys.data() + i * spec_.head_dim,
                       head_.settled->values.data() + i * spec_.head_dim);
  const attention::Panels recent = near().from(shape_, sink_blocks_);
  for (int64_t t = run_.border; t < near_end(); ++t)
    attention::put_row(shape_, recent, t - run_.border, head_.tokens->key(t),
                       head_.tokens->value(t));
}

template <typename T>
void RunReader<T>::visit_near(attention::QueryTile& tile, int64_t first) {
  const int64_t size = shape_.block_keys;
  for (int64_t b = 0; b < sink_blocks_; ++b)
    tile.visit(near().from(shape_, b), {.n_keys = size, .end = n_sinks_ - b * size});
  const int64_t end = spec_.causal ? std::min(first + shape_.block_queries, end_) : run_.n_tokens;
  const attention::Panels recent = near().from(shape_, sink_blocks_);
  for (int64_t begin = run_.border, b = 0; begin < end; begin += size, ++b)
    tile.visit(recent.from(shape_, b), {.n_keys = size,
                                        .end = (spec_.causal ? first + 1 : end) - begin,
                                        .end_step = spec_.causal ? 1 : 0});
}

template <typename T>
Squares RunReader<T>::query_squares(int64_t t) {
  const T* q = args_.queries.row<T>(t - run_.first_token) + query_head_ * spec_.head_dim;
  std::transform(q, q + spec_.head_dim, s_.query.begin(), [](T x) { return to_float(x); });
  return group_squares(s_.query.data(), *head_.dims, spec_.scale);
}

// Scores of the means, what each decision tile opens, and what the means then count.
template <typename T>
void RunReader<T>::decide() {
  const Settled<T>& far = *head_.settled;
  const int64_t size = shape_.block_keys;
  s_.asks.assign(static_cast<size_t>(n_tiles() * stride_), 0.0f);
  for (int64_t b = 0; b < static_cast<int64_t>(tiles_.size()); ++b) {
    attention::QueryTile& tile = tiles_[static_cast<size_t>(b)];
    float* scores = s_.scores.data() + b * shape_.block_queries * stride_;
    for (int64_t c = 0, i = 0; c < n_clusters_; c += size, ++i)
      tile.score_block(head_.means.from(shape_, i), std::min(size, n_clusters_ - c), scores + c,
                       stride_);
    for (int64_t i = 0; i < rows_of(b); ++i) {
      const int64_t t = first_of(b) + i;
      const Squares squares = query_squares(t);
      ask({.estimate = RefineEstimate(spec_.page),
           .n = n_clusters_,
           .scores = scores + i * stride_,
           .spreads = &far.spreads,
           .rhos = far.rhos.data(),
           .squares = &squares,
           .scale = spec_.scale,
           .near = tile.log_sum(i),
           .delta = head_.delta,
           .masses = s_.masses.data(),
           .errors = s_.errors.data(),
           .asks = s_.asks.data() + tile_of(t) * stride_});
    }
  }
  s_.counts.assign(s_.asks.size(), 0.0f);
  s_.any.assign(static_cast<size_t>(stride_), 0.0f);
  std::vector<int64_t> members(static_cast<size_t>(n_tiles()));
  for (int64_t i = 0; i < n_tiles(); ++i) {
    const float* asks = s_.asks.data() + i * stride_;
    float* counts = s_.counts.data() + i * stride_;
    float total = 0;
    for (int64_t c = 0; c < n_clusters_; ++c) {
      const auto n = static_cast<float>(spec_.page);
      s_.any[static_cast<size_t>(c)] = std::max(s_.any[static_cast<size_t>(c)], asks[c]);
      counts[c] = n * (1 - asks[c]);
      total += n * asks[c];
    }
    members[static_cast<size_t>(i)] = static_cast<int64_t>(total);
  }
  for (int64_t t = first_; t < end_; ++t) count(t, members[static_cast<size_t>(tile_of(t))]);
}

template <typename T>
void RunReader<T>::visit_means() {
  const int64_t size = shape_.block_keys;
  for (int64_t b = 0; b < static_cast<int64_t>(tiles_.size()); ++b)
    for (int64_t c = 0, i = 0; c < n_clusters_; c += size, ++i)
      tiles_[static_cast<size_t>(b)].visit_scored(
          head_.means.from(shape_, i), std::min(size, n_clusters_ - c),
          s_.scores.data() + b * shape_.block_queries * stride_ + c, stride_,
          [&](int64_t row) { return s_.counts.data() + tile_of(first_of(b) + row) * stride_ + c; });
}

template <typename T>
void RunReader<T>::visit_opened() {
  const Settled<T>& far = *head_.settled;
  for (int64_t c = 0, part = 0; c < n_clusters_; ++part) {
    if (plan_.mixed && part % plan_.region_segments == 0) visit_gathered();
    for (; c < far.clusters_of(part + 1); ++c)
      if (s_.any[static_cast<size_t>(c)] != 0) gather(c, spec_.sinks + c * spec_.page, spec_.page);
  }
  visit_gathered();
}

// All settled tokens but the sinks, which a dense head has in order.
template <typename T>
void RunReader<T>::visit_settled() {
  for (int64_t t = first_; t < end_; ++t) count(t, std::max<int64_t>(0, run_.border - n_sinks_));
  for (int64_t row = n_sinks_; row < run_.border; row += shape_.block_keys) {
    gather(0, row, std::min(shape_.block_keys, run_.border - row));
    visit_gathered();
  }
}

template <typename T>
void RunReader<T>::gather(int64_t cluster, int64_t row, int64_t n) {
  thread_local std::vector<T> expanded;  // members that are kept as int8, of a block at most
  if (spec_.members == CacheKind::kInt8)
    expanded.resize(static_cast<size_t>(2 * shape_.block_keys * spec_.head_dim));
  if (plan_.mixed) n_gathered_ = attention::round_up(n_gathered_, plan_.cluster_align);
  while (n > 0) {
    if (n_gathered_ == shape_.block_keys) visit_gathered();
    const int64_t taken = std::min(n, shape_.block_keys - n_gathered_);
    const auto rows = head_.settled->rows(row, taken, spec_.head_dim, expanded.data());
    attention::put_rows(shape_, block(), n_gathered_, taken, rows.keys, rows.values);
    if (plan_.mixed) gathered_.push_back({cluster, n_gathered_, taken});
    n_gathered_ += taken;
    row += taken;
    n -= taken;
  }
}

template <typename T>
void RunReader<T>::visit_gathered() {
  if (n_gathered_ == 0) return;
  const bool all = !plan_.mixed || head_.kind == HeadKind::kDense;
  for (int64_t b = 0; b < static_cast<int64_t>(tiles_.size()); ++b)
    tiles_[static_cast<size_t>(b)].visit_hidden(
        block(), n_gathered_, [&](int64_t i, float* scores) {
          if (all) return;
          const float* asks = s_.asks.data() + tile_of(first_of(b) + i) * stride_;
          for (const Gathered& part : gathered_)
            std::fill(scores + part.begin + (asks[part.cluster] != 0 ? part.n : 0),
                      scores + attention::round_up(part.begin + part.n, plan_.cluster_align),
                      -INFINITY);
        });
  gathered_.clear();
  n_gathered_ = 0;
}

}  // namespace

template <typename T>
void attend_run(const RefineSpec& spec, const TilePlan& plan, const AttendRefineArgs& args,
                const HeadView<T>& head, const QueryRun& run, int64_t* opened) {
  thread_local TilesScratch scratch;
  RunReader<T> reader(spec, plan, args, head, run, opened, scratch);
  const int64_t group = spec.n_heads / spec.n_kv_heads;
  for (int64_t first = run.first; first < run.end;) {
    const int64_t end = std::min((first / plan.unit + 1) * plan.unit, run.end);
    for (int64_t query_head = run.kv_head * group; query_head < (run.kv_head + 1) * group;
         ++query_head)
      reader.attend_unit(query_head, first, end);
    first = end;
  }
}

template void attend_run(const RefineSpec&, const TilePlan&, const AttendRefineArgs&,
                         const HeadView<float>&, const QueryRun&, int64_t*);
template void attend_run(const RefineSpec&, const TilePlan&, const AttendRefineArgs&,
                         const HeadView<BFloat16>&, const QueryRun&, int64_t*);

}  // namespace sluice::impl::cpu::refine
