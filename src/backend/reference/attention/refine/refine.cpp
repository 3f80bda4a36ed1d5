// Refined attention as plain loops. docs/algorithm.md, section 7.

#include "backend/reference/attention/refine/refine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "backend/reference/attention/attention.h"
#include "backend/reference/attention/refine/clusters.h"
#include "backend/reference/common/values.h"

namespace sluice::impl::reference::refine {
namespace {

using Matrix = std::vector<std::vector<double>>;

// A cluster as a query meets it: its mean, rounded as a cache keeps it, and its members.
struct Cluster {
  attention::CountedKey mean;
  ClusterStats stats;
  std::vector<size_t> members;              // positions
  std::vector<attention::CountedKey> rows;  // the members as they are kept
};

class ReferenceRefineAttention final : public RefineAttention {
 public:
  explicit ReferenceRefineAttention(const RefineSpec& spec) : spec_(spec) {
    check_refine(spec);
    reset();
  }

  void attend(const AttendRefineArgs& args) override;
  void attend_exact(const AttendRefineArgs& args) override;
  void set_delta_factor(double factor) override { factor_ = factor; }
  void reset() override {
    keys_.clear();
    values_.clear();
    opened_.clear();
  }
  CacheBytes bytes() const override { return {keys_.bytes() + values_.bytes(), 0}; }
  std::vector<int64_t> opened() const override { return opened_; }

 private:
  struct Head {
    std::vector<attention::CountedKey> tokens;
    DimGroups dims;  // none without clusters
    // Of all that a query of this pass may see: of segments, and of their early parts.
    std::vector<Cluster> clusters, early;
  };
  // One query head, and the rows of this pass that decide together.
  struct TileOf {
    const AttendRefineArgs& args;
    const Head& head;
    const RefineHead& plan;
    int64_t query_head, first_row, n_rows;
    int64_t first_token;  // of the pass
  };

  // F(t): where the last settled segment ends.
  int64_t segment_border(int64_t t, int64_t n_tokens) const {
    return spec_.causal ? spec_.border(t) : n_tokens / spec_.segment * spec_.segment;
  }
  // Whether every query of a pass decides for itself.
  bool decide_alone(const AttendRefineArgs& args) const {
    return spec_.tile == 1 || args.queries.rows() == 1;
  }
  // Where the near keys of a row begin.
  int64_t border(const TileOf& tile, int64_t row) const {
    const int64_t t = tile.first_token + row;
    if (spec_.causal && decide_alone(tile.args)) return spec_.early_border(t);
    return segment_border(t, static_cast<int64_t>(tile.head.tokens.size()));
  }
  void group_dims_of(Head& head) const;
  void settle(const Head& head, int64_t begin, int64_t n_tokens, std::vector<Cluster>& to) const;
  void attend_tile(const TileOf& tile);
  std::vector<float> estimates(const TileOf& tile, int64_t row) const;
  std::vector<bool> decide(const TileOf& tile) const;
  // What a query sees exactly whatever it opens.
  std::vector<const attention::CountedKey*> near(const TileOf& tile, int64_t row) const;
  std::vector<const Cluster*> visible_clusters(const TileOf& tile, int64_t row) const;

  RefineSpec spec_;
  double factor_ = 1;            // of deltas
  KeptRows keys_, values_;       // (n_tokens, n_kv_heads * head_dim)
  std::vector<int64_t> opened_;  // (n_segments, n_heads)
};

double rounded(double x, DType dtype) {
  const auto narrow = static_cast<float>(x);
  return dtype == DType::kBF16 ? to_float(to_bfloat16(narrow)) : narrow;
}

double rounded_to_bf16(double x) { return rounded(x, DType::kBF16); }

// A row as int8 keeps it, expanded again to the compute dtype.
void through_int8(std::vector<double>& row, DType dtype) {
  float largest = 0;
  for (const double x : row) largest = int8_largest(largest, static_cast<float>(x));
  const float scale = int8_scale(largest);
  for (double& x : row)
    x = rounded(double{static_cast<float>(to_int8(static_cast<float>(x), scale)) * scale}, dtype);
}

void ReferenceRefineAttention::group_dims_of(Head& head) const {
  Matrix keys;
  for (int64_t t = spec_.sinks; t < spec_.segment; ++t)
    keys.push_back(head.tokens[static_cast<size_t>(t)].key);
  std::vector<double> deviations(static_cast<size_t>(spec_.head_dim));
  for (const Group& group : cluster_keys(keys, spec_.page)) {
    const std::vector<double> mean = mean_of(keys, group);
    for (const size_t i : group)
      for (size_t d = 0; d < mean.size(); ++d)
        deviations[d] += (keys[i][d] - mean[d]) * (keys[i][d] - mean[d]);
  }
  head.dims = group_dims(deviations);
}

// Forms the clusters of n_tokens from `begin` on.
void ReferenceRefineAttention::settle(const Head& head, int64_t begin, int64_t n_tokens,
                                      std::vector<Cluster>& to) const {
  const int64_t first = begin == 0 ? spec_.sinks : begin, end = begin + n_tokens;
  Matrix keys, values;
  double norms = 0;
  for (int64_t t = first; t < end; ++t) {
    const attention::CountedKey& token = head.tokens[static_cast<size_t>(t)];
    keys.push_back(token.key);
    values.push_back(token.value);
    norms += std::sqrt(
        std::inner_product(token.value.begin(), token.value.end(), token.value.begin(), 0.0));
  }
  const double mean_norm = norms / static_cast<double>(keys.size());
  for (const Group& group : cluster_keys(keys, spec_.page)) {
    const auto n = static_cast<double>(group.size());
    Cluster cluster{.mean = {n, mean_of(keys, group), mean_of(values, group)},
                    .stats = {},
                    .members = {},
                    .rows = {}};
    std::vector<double> deviations(cluster.mean.key.size());  // by dimension
    double value_deviation = 0;
    for (const size_t i : group) {
      for (size_t d = 0; d < deviations.size(); ++d)
        deviations[d] += (keys[i][d] - cluster.mean.key[d]) * (keys[i][d] - cluster.mean.key[d]);
      value_deviation += distance2(values[i], cluster.mean.value);
      cluster.members.push_back(i + static_cast<size_t>(first));
      attention::CountedKey& row = cluster.rows.emplace_back(head.tokens[cluster.members.back()]);
      if (spec_.members == CacheKind::kExact) continue;
      through_int8(row.key, spec_.dtype);
      through_int8(row.value, spec_.dtype);
    }
    for (int g = 0; g < kSpreadGroups; ++g) {
      double sum = 0;
      head.dims.each(g, [&](int32_t d) { sum += deviations[static_cast<size_t>(d)]; });
      if (head.dims.size(g) > 0)
        cluster.stats.spreads[static_cast<size_t>(g)] =
            static_cast<float>(rounded_to_bf16(sum / n / head.dims.size(g)));
    }
    if (mean_norm > 0)
      cluster.stats.rho = static_cast<float>(std::sqrt(value_deviation / n) / mean_norm);
    for (double& x : cluster.mean.key) x = rounded(x, spec_.dtype);
    for (double& x : cluster.mean.value) x = rounded(x, spec_.dtype);
    to.push_back(std::move(cluster));
  }
}

std::vector<const attention::CountedKey*> ReferenceRefineAttention::near(const TileOf& tile,
                                                                         int64_t row) const {
  const int64_t t = tile.first_token + row;
  const auto n_tokens = static_cast<int64_t>(tile.head.tokens.size());
  std::vector<const attention::CountedKey*> seen;
  for (int64_t i = 0; i < (spec_.causal ? t + 1 : n_tokens); ++i)
    if (i < spec_.sinks || i >= border(tile, row) || tile.plan.kind == HeadKind::kDense)
      seen.push_back(&tile.head.tokens[static_cast<size_t>(i)]);
  return seen;
}

// Those of segments before F(t), then those of early parts of the next one.
std::vector<const Cluster*> ReferenceRefineAttention::visible_clusters(const TileOf& tile,
                                                                       int64_t row) const {
  if (tile.plan.kind != HeadKind::kClusters) return {};
  const int64_t settled =
      segment_border(tile.first_token + row, static_cast<int64_t>(tile.head.tokens.size()));
  std::vector<const Cluster*> seen;
  const auto see = [&](const std::vector<Cluster>& clusters, int64_t begin, int64_t end) {
    for (const Cluster& cluster : clusters) {
      const auto first = static_cast<int64_t>(cluster.members[0]);
      if (first >= begin && first < end) seen.push_back(&cluster);
    }
  };
  see(tile.head.clusters, 0, settled);
  see(tile.head.early, settled, border(tile, row));
  return seen;
}

// What the query at `row` estimates of the visible clusters. -inf: of one member, never opened.
std::vector<float> ReferenceRefineAttention::estimates(const TileOf& tile, int64_t row) const {
  const RefineEstimate estimate(spec_.page);
  const std::vector<const Cluster*> clusters = visible_clusters(tile, row);
  const size_t n = clusters.size();
  std::vector<double> query;
  for (int64_t d = 0; d < spec_.head_dim; ++d)
    query.push_back(load(tile.args.queries, row, tile.query_head * spec_.head_dim + d) *
                    double{spec_.scale});
  const auto dot = [&](const std::vector<double>& key) {
    return std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
  };
  std::array<double, kSpreadGroups> squares = {};  // of the query, by group of dimensions
  for (int g = 0; g < kSpreadGroups && n > 0; ++g) {
    double& sum = squares[static_cast<size_t>(g)];
    tile.head.dims.each(g, [&](int32_t d) {
      const double x = query[static_cast<size_t>(d)];
      sum += x * x;
    });
    sum = rounded_to_bf16(sum);
  }
  std::vector<double> masses;
  for (const attention::CountedKey* key : near(tile, row)) masses.push_back(dot(key->key));
  std::vector<float> scores, sigmas;
  for (size_t c = 0; c < n; ++c) {
    double variance = 0;
    for (size_t g = 0; g < kSpreadGroups; ++g)
      variance += squares[g] * double{clusters[c]->stats.spreads[g]};
    scores.push_back(static_cast<float>(dot(clusters[c]->mean.key)));
    sigmas.push_back(static_cast<float>(std::sqrt(variance)));
    masses.push_back(estimate.log_mass(scores[c], sigmas[c]));
  }
  const double largest = *std::max_element(masses.begin(), masses.end());
  double total = 0;
  for (const double mass : masses) total += std::exp(mass - largest);
  const auto log_z = static_cast<float>(largest + std::log(total));
  std::vector<float> found;
  for (size_t c = 0; c < n; ++c)
    found.push_back(spec_.page > 1 ? estimate(scores[c], sigmas[c], clusters[c]->stats.rho, log_z)
                                   : -INFINITY);
  return found;
}

// Which of the visible clusters a tile opens. All its queries see the same.
std::vector<bool> ReferenceRefineAttention::decide(const TileOf& tile) const {
  const int64_t n_queries = tile.args.queries.rows();
  const bool shared = spec_.tile > 1 && n_queries > 1;
  const double delta = tile.plan.delta * (shared ? spec_.tile_factor : 1.0);
  std::vector<double> level;  // of each cluster: the largest estimate of the queries
  for (int64_t i = 0; i < tile.n_rows; ++i) {
    const std::vector<float> found = estimates(tile, tile.first_row + i);
    level.resize(found.size(), -INFINITY);
    for (size_t c = 0; c < found.size(); ++c)
      if (!std::isnan(found[c])) level[c] = std::max(level[c], double{found[c]});
  }
  std::vector<bool> opens;
  for (const double x : level) opens.push_back(x >= delta);
  return opens;
}

void ReferenceRefineAttention::attend_tile(const TileOf& tile) {
  const std::vector<bool> opens = decide(tile);
  for (int64_t i = 0; i < tile.n_rows; ++i) {
    const int64_t row = tile.first_row + i, t = tile.first_token + row;
    std::vector<const attention::CountedKey*> seen = near(tile, row);
    int64_t& count =
        opened_[static_cast<size_t>(t / spec_.segment * spec_.n_heads + tile.query_head)];
    if (tile.plan.kind == HeadKind::kDense)
      count += std::max<int64_t>(0, border(tile, row) - spec_.sinks);
    const std::vector<const Cluster*> clusters = visible_clusters(tile, row);
    for (size_t c = 0; c < clusters.size(); ++c) {
      const Cluster& cluster = *clusters[c];
      if (!opens[c]) {
        seen.push_back(&cluster.mean);
        continue;
      }
      for (const attention::CountedKey& member : cluster.rows) seen.push_back(&member);
      count += static_cast<int64_t>(cluster.members.size());
    }
    attention::attend_head(
        {tile.args.queries, row, tile.query_head, double{spec_.scale}, seen, tile.args.out});
  }
}

void ReferenceRefineAttention::attend(const AttendRefineArgs& args) {
  const int64_t first = keys_.size(), n = args.queries.rows();
  SLUICE_CHECK(spec_.causal || first == 0);
  keys_.append(args.keys);
  values_.append(args.values);
  const int64_t end = keys_.size(), group = spec_.n_heads / spec_.n_kv_heads;
  opened_.resize(static_cast<size_t>((end + spec_.segment - 1) / spec_.segment * spec_.n_heads));
  for (int64_t kv_head = 0; kv_head < spec_.n_kv_heads; ++kv_head) {
    Head head{.tokens = attention::counted_keys(keys_, values_, kv_head, spec_.head_dim),
              .dims = {},
              .clusters = {},
              .early = {}};
    if (end >= spec_.segment) group_dims_of(head);
    for (int64_t begin = 0; n > 0 && begin < segment_border(end - 1, end); begin += spec_.segment)
      settle(head, begin, spec_.segment, head.clusters);
    if (spec_.causal && spec_.early > 0 && n > 0 && decide_alone(args))
      for (int64_t begin = spec_.border(first); begin < spec_.early_border(end - 1);
           begin += spec_.early)
        settle(head, begin, spec_.early, head.early);
    const RefineHead plan = spec_.heads[static_cast<size_t>(kv_head)].tightened(factor_);
    for (int64_t query_head = kv_head * group; query_head < (kv_head + 1) * group; ++query_head)
      for (int64_t row = 0; row < n;) {
        const int64_t next =
            std::min((first + row) / spec_.tile * spec_.tile + spec_.tile - first, n);
        attend_tile({args, head, plan, query_head, row, next - row, first});
        row = next;
      }
  }
}

// Members that are kept as int8 are read so here too.
void ReferenceRefineAttention::attend_exact(const AttendRefineArgs& args) {
  SLUICE_CHECK(spec_.causal && args.queries.rows() == 1);
  const std::vector<int64_t> opened = opened_;
  const double factor = std::exchange(factor_, 0.0);
  attend(args);
  factor_ = factor;
  opened_ = opened;
  keys_.drop_last();
  values_.drop_last();
}

}  // namespace

std::unique_ptr<RefineAttention> make_attention(const RefineSpec& spec) {
  return std::make_unique<ReferenceRefineAttention>(spec);
}

}  // namespace sluice::impl::reference::refine
