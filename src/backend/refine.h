// Refined attention: the seam's types. docs/algorithm.md, section 7.
//
// Far tokens are grouped into clusters of similar keys. A query reads a cluster as its mean, or
// opens it and reads the members. A RefineAttention belongs to one layer of one sequence: it is its
// cache.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/attend.h"
#include "backend/cache_kind.h"

namespace sluice::impl {

// ClusterKind::kPages looks at the dimensions in which the keys of a segment vary most, rounded to
// bf16: fewer than all are as good (docs/results/refine.md), and fit tensor cores on every dtype.
inline constexpr int64_t kSplitDims = 32;
// Steps towards the leading direction of a group of keys, which it halves.
inline constexpr int kPowerSteps = 3;

// How the tokens of a closed segment are grouped.
enum class ClusterKind : uint8_t {
  kPages,    // equal clusters by recursive median split along the leading direction
  kMeans,    // k-means from evenly spaced tokens
  kNearest,  // nearest of evenly spaced tokens
};

// What a query compares with delta.
enum class RefineRule : uint8_t {
  kError,      // estimate of the error that reading the mean makes
  kStrongest,  // estimate of the weight of the strongest member
  kMeanError,  // kError, but a tile opens by the mean of its queries: to compare with, it loses
               // what one of them needs
};

struct RefineHead {
  HeadKind kind = HeadKind::kClusters;  // kWindow drops far tokens but for sinks; kDense opens all
  double delta = 0;                     // kClusters: opens what is estimated at delta or more

  // RefineAttention::set_delta_factor.
  RefineHead tightened(double factor) const {
    if (factor == 1 || kind == HeadKind::kDense) return *this;
    if (kind == HeadKind::kWindow) return factor == 0 ? RefineHead{HeadKind::kDense, 0} : *this;
    return {kind, factor * (std::isinf(delta) ? 1 : delta)};
  }
};

// Causal: the query at t sees the tokens from F(t) = segment * floor(max(0, t - window) / segment)
// on, and the sinks, exactly. Tokens before F(t) are in clusters, which are formed once for a
// segment, when F passes its end. A query that decides for itself (tile 1, or a pass of one token)
// sees the tokens from E(t) = early * floor(max(0, t - window) / early) on exactly, and those of
// [F(t), E(t)) in clusters that are formed in parts of `early` tokens. Not causal: one pass; every
// query sees all whole segments as clusters and the rest exactly.
struct RefineSpec {
  int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  float scale = 1;
  bool causal = true;
  int64_t capacity = 0;  // tokens that a sequence may have
  int64_t window = 128;
  int64_t segment = 256;
  int64_t early = 0;   // divides segment; whole pages, more than the sinks. 0: E(t) = F(t)
  int64_t page = 16;   // tokens of a cluster; a mean size where sizes differ. Divides segment
  int64_t sinks = 16;  // first tokens that are always exact: whole pages, less than a segment
  // Queries of a head that decide together: those of [i * tile, (i + 1) * tile) in one pass open
  // what any of them asks for (kMeanError: what the mean of their estimates does, one that is no
  // number being 0). 1: each decides for itself. Divides window and segment.
  int64_t tile = 64;
  double tile_factor = 1;  // of delta, where tile > 1 and the pass has more than one query
  ClusterKind clusters = ClusterKind::kPages;
  RefineRule rule = RefineRule::kError;
  // Of heads that cluster. Sinks and near tokens are exact, means are those of exact members.
  CacheKind members = CacheKind::kExact;
  // Memory on a GPU grows with the tokens up to `capacity`; recorded steps need it in one place.
  bool grows = false;
  // Window heads keep their far tokens too: attend_exact() and a delta factor of 0 read them.
  bool keeps_all = false;
  std::vector<RefineHead> heads;  // (n_kv_heads)

  // The rule of a pass of n tokens: a query that decides for itself is its own mean.
  RefineRule rule_of_pass(int64_t n) const {
    return rule == RefineRule::kMeanError && (tile == 1 || n == 1) ? RefineRule::kError : rule;
  }
  // F(t), of a causal model.
  int64_t border(int64_t t) const { return near_border(t, window, segment); }
  // E(t).
  int64_t early_border(int64_t t) const {
    return near_border(t, window, early > 0 ? early : segment);
  }
};

// What decides about a cluster, one for all queries.
struct ClusterStats {
  float n = 0;       // members
  float spread = 0;  // mean squared deviation of members' keys from their mean, per dimension
  float rho = 0;     // root mean square deviation of members' values from their mean, over the
                     // mean norm of the values of the segment's clustered tokens
};

// The estimate that a query compares with delta. score: scale * q . mean; q_norm2: scale^2 |q|^2;
// log_z: log of the sum of exp over near scores and cluster_mass().
struct RefineEstimate {
  RefineRule rule;

  bool is_error() const { return rule != RefineRule::kStrongest; }
  // The log of what a cluster adds to the normaliser.
  float cluster_mass(float score, float q_norm2, const ClusterStats& c) const {
    const float log_n = std::log(c.n);
    return is_error() ? score + log_n + 0.5f * q_norm2 * c.spread : score + log_n;
  }
  float operator()(float score, float q_norm2, const ClusterStats& c, float log_z) const {
    const float variance = q_norm2 * c.spread, sigma = std::sqrt(variance);
    if (is_error())
      return std::exp(cluster_mass(score, q_norm2, c) - log_z) * (sigma * c.rho + 0.5f * variance);
    return std::exp(score + sigma * std::sqrt(2 * std::log(c.n)) - log_z);
  }
};

struct AttendRefineArgs {
  ConstTensor queries;  // (n_tokens, n_heads, head_dim)
  ConstTensor keys;     // (n_tokens, n_kv_heads, head_dim), after rotary embedding
  ConstTensor values;   // (n_tokens, n_kv_heads, head_dim)
  Tensor out;           // (n_tokens, n_heads, head_dim)
};

// n rounded up to whole pages.
inline int64_t whole_pages(int64_t n, int64_t page) { return (n + page - 1) / page * page; }

// Of sizes that have no meaning: a broken promise, since plans are checked before.
void check_refine(const RefineSpec& spec);

class RefineAttention {
 public:
  virtual ~RefineAttention() = default;
  // Takes in the tokens that follow and answers their queries.
  virtual void attend(const AttendRefineArgs& args) = 0;
  // Answers the query of the one token that follows with every key read, and takes nothing in.
  // Needs spec.keeps_all where a head is a window. Not recorded, and not counted in opened().
  virtual void attend_exact(const AttendRefineArgs& args) = 0;
  // From now on every delta is the spec's times `factor`, an infinite one being 1 before. 0 reads
  // everything, window heads too.
  virtual void set_delta_factor(double factor) = 0;
  // Whether an attend() of the next token alone forms no clusters: then it may be recorded, or be
  // the replay of a recording. expect_token() comes before a replay; recording takes in nothing.
  virtual bool can_record_next() const { return true; }
  virtual void expect_token() {}
  virtual void reset() = 0;
  virtual CacheBytes bytes() const = 0;
  // (ceil(n_tokens / segment), n_heads): members of opened clusters that the queries of each
  // segment of positions read, since reset(). Waits for them. Dense heads open everything.
  virtual std::vector<int64_t> opened() const = 0;
  // The same without waiting: whoever calls the answer waits. It outlives this object, and may
  // count tokens of later passes too.
  virtual std::function<std::vector<int64_t>()> opened_later() const {
    return [counts = opened()] { return counts; };
  }
};

}  // namespace sluice::impl
