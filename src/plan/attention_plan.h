// What attention does in every layer and key/value head, as data. docs/algorithm.md, sections 1-3
// and 7.

#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "backend/refine.h"
#include "plan/baseline_plan.h"
#include "select/rules.h"

namespace sluice::impl {

enum class AttentionMode : uint8_t { kDense, kPaper, kCopy, kKeys, kRefine, kBaseline };
enum class SelectSpace : uint8_t { kResidual, kNormed };

// "dense", "paper", "copy", "keys", "refine"; and "baseline", which mode_of does not know: no plan
// file and no command but eval has it.
std::string_view mode_name(AttentionMode mode);
std::optional<AttentionMode> mode_of(std::string_view name);
std::string_view space_name(SelectSpace space);  // "residual", "normed"
std::optional<SelectSpace> space_of(std::string_view name);
std::string_view far_name(FarKey far);  // "centroid", "values", "own"
std::optional<FarKey> far_of(std::string_view name);
std::string_view kind_name(HeadKind kind);  // "clusters", "window", "dense"
std::optional<HeadKind> kind_of(std::string_view name);
std::string_view cache_name(CacheKind kind);  // "exact", "int8"
std::optional<CacheKind> cache_of(std::string_view name);

struct HeadPlan {
  HeadKind kind = HeadKind::kClusters;
  double tau = 0;
  FarKey far = FarKey::kCentroid;
  double delta = 0;  // `refine`: clusters are opened from this estimate on

  bool operator==(const HeadPlan&) const = default;
};

// By what refined layers decide (RefineEstimate). A plan's deltas are of this rule: with another
// they would open something else.
inline constexpr std::string_view kRefineRule = "error-by-groups";

// The sizes of `refine`, see RefineSpec.
struct RefinePlan {
  // Above 0 in a layer that refines. Before, 0 asks for with_defaults().
  int64_t segment = 0;
  int64_t early = 0;  // equal to the segment: nothing is clustered early
  int64_t page = 16;
  int64_t tile = 0;
  double tile_factor = 5;

  bool operator==(const RefinePlan&) const = default;
};

struct LayerPlan {
  AttentionMode mode = AttentionMode::kDense;
  SelectRule rule = SelectRule::kCascadeCover;
  SelectSpace space = SelectSpace::kNormed;
  // Take the sets of the selected layer before as they are, unvalidated; rule, space, sinks and
  // outlier_ratio are then that layer's.
  bool reuse = false;
  // Decide most pairs in a selection basis, where that pays; the sets are the same. Section 5.
  bool joint = false;
  int64_t sinks = 4;
  double outlier_ratio = 8;
  int64_t window = 128, block = 128;
  // The heads that cluster do so by one tau, which the layer chooses from the first tokens of each
  // sequence (select/auto_tau.h); their own means nothing then.
  bool tau_auto = false;
  RefinePlan refine;      // mode `refine`, which knows window and sinks too, and no selection
  BaselinePlan baseline;  // mode `baseline`, which knows nothing else, and has no `heads`
  // How keys and values are kept: all of a layer of mode `dense`, members of clusters in `refine`.
  // The other modes have exact ones alone.
  CacheKind cache = CacheKind::kExact;
  std::vector<HeadPlan> heads;  // (n_kv_heads); in `copy` and `paper` all cluster, by one tau

  bool clusters() const;  // some head does
  // Whether representatives are selected: in every mode but `dense`, `refine` and `baseline`.
  bool selects() const {
    return mode != AttentionMode::kDense && mode != AttentionMode::kRefine &&
           mode != AttentionMode::kBaseline;
  }
  // Those of the heads that cluster, distinct, ascending; {0} where no head does.
  std::vector<double> taus() const;

  bool operator==(const LayerPlan&) const = default;
};

struct AttentionPlan {
  std::vector<LayerPlan> layers;  // (n_layers)
  // Caches keep what exact steps read: RefineSpec::keeps_all. Of a run, and in no file.
  bool audited = false;
  bool all_dense() const;
  // Whether there is nothing that could change an answer: all layers are dense, all caches exact.
  bool all_exact() const;
  // Whether every layer can answer exactly at any time: none drops a key for good.
  bool keeps_every_key() const;

  bool operator==(const AttentionPlan&) const = default;
};
// Whether a layer sees the whole text at once, as the paper's do.
bool has_paper(const AttentionPlan& plan);

// The sizes of a model that a plan must fit.
struct PlanShape {
  int64_t n_layers, n_kv_heads;
  bool causal;
  std::vector<int64_t> windows = {};  // of each layer, sliding, 0 for none; empty: none anywhere
  int64_t context;                    // in use
  bool capped = false;                // attention scores are, which dense attention alone can do

  // Whether a layer attends densely whatever a plan says: scores are capped, or its sliding window
  // is shorter than the context, and it reads few keys already.
  bool stays_dense(int64_t layer) const;
};

// Of `refine`, for a query that decides for itself.
inline constexpr double kDefaultDelta = 0.005;
// 128 tokens up to a context of 2048, where the open segment alone is too short for some models;
// none beyond.
int64_t default_refine_window(int64_t context);
// A segment of a sixteenth of the context, 128 to 512 tokens: longer ones cluster better, and half
// a segment is near on average. Where queries decide for themselves a quarter of one is clustered
// early, if that is two pages or more. A tile of 128 queries, or of a smaller segment or window.
RefinePlan with_defaults(RefinePlan plan, int64_t window, int64_t context);
inline constexpr int64_t kMaxSegment = 4096, kMaxTile = 1024;

// One choice for all layers from `from_layer` on that do not stay dense; what is not given has the
// default of section 1, and a block no larger than the window asked for.
struct UniformAttention {
  AttentionMode mode = AttentionMode::kDense;
  std::optional<SelectRule> rule;
  std::optional<SelectSpace> space;
  std::optional<int64_t> sinks, window, block;
  std::optional<double> outlier_ratio;
  double tau = 0.3;
  bool tau_auto = false;  // instead of tau
  FarKey far = FarKey::kCentroid;
  int64_t from_layer = 0;
  bool joint = false;
  double delta = kDefaultDelta;  // `refine`
  RefinePlan refine;
  BaselinePlan baseline;
  CacheKind cache = CacheKind::kExact;  // of all layers, those that stay dense included

  bool all_exact() const { return mode == AttentionMode::kDense && cache == CacheKind::kExact; }
};
// The mode, or which baseline: "baseline:quest".
std::string_view attention_name(const UniformAttention& choice);

// The layer that UniformAttention asks for, defaults filled in.
LayerPlan layer_plan(const UniformAttention& choice, const PlanShape& shape);
AttentionPlan uniform_plan(const UniformAttention& choice, const PlanShape& shape);
// The plan with the layers dense that stay dense, caches as they are. A layer that reused the sets
// of one of them has none then, which check_plan() refuses.
AttentionPlan fitted(AttentionPlan plan, const PlanShape& shape);
// The plan for a text of so many tokens: baselines take their share of these. Nothing else changes.
AttentionPlan at_length(AttentionPlan plan, int64_t n_tokens);

// Throws Error for a plan the model cannot follow, or that has no meaning. Layers that stay dense
// are passed over: see fitted().
void check_plan(const AttentionPlan& plan, const PlanShape& shape);

}  // namespace sluice::impl
