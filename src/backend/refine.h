// Refined attention: the seam's types. docs/algorithm.md, section 7.
//
// Far tokens are grouped into clusters of similar keys. A query reads a cluster as its mean, or
// opens it and reads the members. A RefineAttention belongs to one layer of one sequence: it is its
// cache.

#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/attend.h"
#include "backend/cache_kind.h"

namespace sluice::impl {

// Clusters are formed by the dimensions in which the keys of a segment vary most, rounded to bf16:
// fewer than all are as good (docs/results/refine.md), and fit tensor cores on every dtype.
inline constexpr int64_t kSplitDims = 32;
// Steps towards the leading direction of a group of keys, which it halves.
inline constexpr int kPowerSteps = 3;

// A head's dimensions in groups that have a spread each. There are as many as one tensor core
// product is deep.
inline constexpr int kSpreadGroups = 8;
// Dimensions of less variance than this share of the largest count as equal.
inline constexpr double kLeastVariance = 1e-6;
struct DimGroups {
  std::vector<int32_t> dims;  // by their variance, least first
  std::array<int32_t, kSpreadGroups + 1> begins =
      {};  // group g has dims [begins[g], begins[g + 1])

  int32_t size(int g) const {
    return begins[static_cast<size_t>(g) + 1] - begins[static_cast<size_t>(g)];
  }
  // Calls use(dimension) for those of group g.
  template <typename Use>
  void each(int g, const Use& use) const {
    const auto at = static_cast<size_t>(g);
    for (int32_t i = begins[at]; i < begins[at + 1]; ++i) use(dims[static_cast<size_t>(i)]);
  }
};
// Groups of alike variance inside the clusters of the first segment: of all cuts of the ordered
// dimensions that with the least sum of squared deviations of the variances' logarithms from their
// group's mean. Groups have a dimension at least, while there are any. A variance that is no number
// counts as 0.
DimGroups group_dims(const std::vector<double>& variances);

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

// Where the near keys of the query at t begin: borders move by `step`, which divides the segment,
// but for the first segment, which is clustered as a whole: its clusters group the dimensions.
inline int64_t refine_border(int64_t t, int64_t window, int64_t segment, int64_t step) {
  return near_border(t, window, segment) == 0 ? 0 : near_border(t, window, step);
}

// Causal: the query at t sees the tokens from F(t) = segment * floor(max(0, t - window) / segment)
// on, and the sinks, exactly. Tokens before F(t) are in clusters, which are formed once for a
// segment, when F passes its end. A query that decides for itself (tile 1, or a pass of one token)
// sees the tokens from E(t) = early * floor(max(0, t - window) / early) on exactly, or E(t) = 0
// where F(t) is, and those of [F(t), E(t)) in clusters that are formed in parts of `early` tokens.
// Not causal: one pass; every query sees all whole segments as clusters and the rest exactly.
struct RefineSpec {
  int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  float scale = 1;
  bool causal = true;
  int64_t capacity = 0;  // tokens that a sequence may have
  int64_t window = 128;
  int64_t segment = 256;
  int64_t early = 0;   // divides segment; whole pages, more than the sinks. 0: E(t) = F(t)
  int64_t page = 16;   // tokens of a cluster. Divides segment
  int64_t sinks = 16;  // first tokens that are always exact: whole pages, less than a segment
  // Queries of a head that decide together: those of [i * tile, (i + 1) * tile) in one pass open
  // what any of them asks for. 1: each decides for itself. Divides window and segment.
  int64_t tile = 64;
  double tile_factor = 1;  // of delta, where tile > 1 and the pass has more than one query
  // Of heads that cluster. Sinks and near tokens are exact, means are those of exact members.
  CacheKind members = CacheKind::kExact;
  // Memory on a GPU grows with the tokens up to `capacity`; recorded steps need it in one place.
  bool grows = false;
  // Window heads keep their far tokens too: attend_exact() and a delta factor of 0 read them.
  bool keeps_all = false;
  std::vector<RefineHead> heads;  // (n_kv_heads)

  // F(t), of a causal model.
  int64_t border(int64_t t) const { return near_border(t, window, segment); }
  // E(t).
  int64_t early_border(int64_t t) const {
    return refine_border(t, window, segment, early > 0 ? early : segment);
  }
  // The first position that has another E(t).
  int64_t early_border_end(int64_t t) const {
    const int64_t border = early_border(t), step = early > 0 ? early : segment;
    return window + (border == 0 ? segment : border + step);
  }
};

// What decides about a cluster, one for all queries.
struct ClusterStats {
  // Mean squared deviation of the members' keys from their mean, per dimension of each group of
  // dimensions, rounded to bf16. An empty group has 0.
  std::array<float, kSpreadGroups> spreads = {};
  // Root mean square deviation of the members' values from their mean, over the mean norm of the
  // values of the segment's clustered tokens.
  float rho = 0;
};

// The estimate that a query compares with delta, for clusters of n members whose scores have the
// mean `score` (scale * q . mean) and the variance sigma^2: the sum over groups of a group's spread
// times the query's sum of squares there, scaled and rounded to bf16.
class RefineEstimate {
 public:
  explicit RefineEstimate(int64_t n)
      : log_n_(std::log(static_cast<float>(n))), linear_from_(std::sqrt(2 * log_n_)) {}

  // The log of what the variance adds to the mean of exp(scores): sigma^2 / 2 as for a normal
  // distribution, and linear where a mean of n such numbers can no longer follow it, since it is
  // less than their largest.
  float excess(float sigma) const {
    return sigma < linear_from_ ? 0.5f * sigma * sigma : linear_from_ * sigma - log_n_;
  }
  // The log of what a cluster adds to the normaliser.
  float log_mass(float score, float sigma) const { return score + log_n_ + excess(sigma); }
  // How much of a cluster's weight its mean misplaces: values that go with the deviations of keys,
  // and weight that the mean does not have.
  float error(float sigma, float rho) const {
    return std::min(sigma, 1.0f) * rho + std::min(excess(sigma), 1.0f);
  }
  // log_z: log of the sum of exp over near scores and log_mass() of all clusters.
  float operator()(float score, float sigma, float rho, float log_z) const {
    return std::exp(log_mass(score, sigma) - log_z) * error(sigma, rho);
  }
  float log_n() const { return log_n_; }
  float linear_from() const { return linear_from_; }

 private:
  float log_n_, linear_from_;
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
