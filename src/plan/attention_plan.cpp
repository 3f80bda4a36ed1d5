#include "plan/attention_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "select/auto_tau.h"

namespace sluice::impl {
namespace {

template <typename T, size_t n>
using Names = std::array<std::pair<T, std::string_view>, n>;

constexpr Names<AttentionMode, 5> kModes = {{{AttentionMode::kDense, "dense"},
                                             {AttentionMode::kPaper, "paper"},
                                             {AttentionMode::kCopy, "copy"},
                                             {AttentionMode::kKeys, "keys"},
                                             {AttentionMode::kRefine, "refine"}}};
constexpr Names<SelectSpace, 2> kSpaces = {
    {{SelectSpace::kResidual, "residual"}, {SelectSpace::kNormed, "normed"}}};
constexpr Names<FarKey, 3> kFars = {
    {{FarKey::kCentroid, "centroid"}, {FarKey::kValues, "values"}, {FarKey::kOwn, "own"}}};
constexpr Names<HeadKind, 3> kKinds = {{{HeadKind::kClusters, "clusters"},
                                        {HeadKind::kWindow, "window"},
                                        {HeadKind::kDense, "dense"}}};

constexpr Names<CacheKind, 2> kCacheKinds = {
    {{CacheKind::kExact, "exact"}, {CacheKind::kInt8, "int8"}}};

template <typename T, size_t n>
std::string_view name_in(const Names<T, n>& names, T value) {
  for (const auto& [known, name] : names)
    if (known == value) return name;
  SLUICE_CHECK(!"unnamed value");
}

template <typename T, size_t n>
std::optional<T> value_in(const Names<T, n>& names, std::string_view text) {
  for (const auto& [value, name] : names)
    if (name == text) return value;
  return {};
}

void check_heads(const LayerPlan& layer, const PlanShape& shape) {
  if (static_cast<int64_t>(layer.heads.size()) != shape.n_kv_heads)
    throw Error(fmt::format("the plan has {} key/value heads, the model {}", layer.heads.size(),
                            shape.n_kv_heads),
                "was the plan made for this model?");
  for (const HeadPlan& head : layer.heads) {
    const bool mixed = layer.mode == AttentionMode::kKeys || layer.mode == AttentionMode::kRefine;
    if (!mixed && head.kind != HeadKind::kClusters)
      throw Error(fmt::format("attention {} has no {} heads", mode_name(layer.mode),
                              head.kind == HeadKind::kDense ? "dense" : "window-only"),
                  "give all heads of the layer a tau, or use attention keys");
    if (!shape.causal && head.kind == HeadKind::kWindow)
      throw Error("an encoder has no window, so a head cannot be window-only",
                  "make that head dense, or give it a tau");
    if (!(head.tau >= 0 && head.tau < 1))
      throw Error(fmt::format("tau {} is outside 0 … 1", head.tau),
                  "0 merges nothing, 0.3 is the paper's, values near 1 merge almost everything");
    if (!(head.delta >= 0))
      throw Error(fmt::format("delta {} makes no sense", head.delta),
                  "0 opens every cluster, 0.01 those that matter, inf none");
  }
  if (layer.selects() && layer.mode != AttentionMode::kKeys && layer.taus().size() > 1)
    throw Error(
        fmt::format("attention {} has one tau for all heads of a layer", mode_name(layer.mode)),
        "give its heads the same tau, or use attention keys");
}

void check_selection(const LayerPlan& layer) {
  if (layer.sinks < 0) throw Error(fmt::format("{} sinks make no sense", layer.sinks), "0 or more");
  if (!(layer.outlier_ratio >= 0 && std::isfinite(layer.outlier_ratio)))
    throw Error(fmt::format("outlier ratio {} makes no sense", layer.outlier_ratio),
                "a multiple of the median norm, 0 to exempt nobody");
  if (layer.mode != AttentionMode::kPaper && !is_causal(layer.rule))
    throw Error(fmt::format("{} does not go with attention {}: it looks at later tokens",
                            rule_name(layer.rule), mode_name(layer.mode)),
                "--select cascade-causal, or --attention paper to reproduce the paper");
}

LayerPlan dense_layer(CacheKind cache) {
  LayerPlan layer;
  layer.cache = cache;
  return layer;
}

void check_cache_kind(const LayerPlan& layer) {
  if (layer.cache != CacheKind::kExact && layer.mode != AttentionMode::kDense &&
      layer.mode != AttentionMode::kRefine)
    throw Error(
        fmt::format("attention {} has no cache {}", mode_name(layer.mode), cache_name(layer.cache)),
        "attention dense or refine, or an exact cache");
}

// The border between near and far keys.
void check_border(const LayerPlan& layer) {
  if (layer.window < 0 || layer.block < 1)
    throw Error(fmt::format("window {} and block {} make no sense", layer.window, layer.block),
                "a window of 0 or more, a block of 1 or more");
  if (layer.window % layer.block != 0)
    throw Error(fmt::format("window {} is not a multiple of block {}", layer.window, layer.block),
                fmt::format("--window {} --block {}, for example", layer.window,
                            std::gcd(layer.window, layer.block)));
}

// Segments, clusters and tiles of `refine`.
void check_refine_sizes(const LayerPlan& layer) {
  const RefinePlan& refine = layer.refine;
  if (refine.page < 1 || refine.segment < 1 || refine.segment % refine.page != 0)
    throw Error(fmt::format("a segment of {} does not hold whole clusters of {}", refine.segment,
                            refine.page),
                "--segment 256 --page 16, for example");
  if (refine.segment > kMaxSegment)
    throw Error(fmt::format("a segment of {} tokens is too long", refine.segment),
                fmt::format("at most {}", kMaxSegment));
  if (refine.tile > kMaxTile)
    throw Error(fmt::format("a tile of {} queries is too large", refine.tile),
                fmt::format("at most {}", kMaxTile));
  if (layer.sinks < 0 || layer.sinks > refine.segment - refine.page)
    throw Error(fmt::format("{} sinks leave nothing to cluster in a segment of {}", layer.sinks,
                            refine.segment),
                fmt::format("--sinks {} or less", refine.segment - refine.page));
  if (refine.early < 1 || refine.early % refine.page != 0 || refine.segment % refine.early != 0 ||
      layer.sinks > refine.early - refine.page)
    throw Error(fmt::format("a segment of {} cannot be clustered early in parts of {}",
                            refine.segment, refine.early),
                fmt::format("--early {}: not early", refine.segment));
  if (refine.tile < 1 || layer.window < 0 || layer.window % refine.tile != 0 ||
      refine.segment % refine.tile != 0)
    throw Error(fmt::format("window {} and segment {} are not multiples of tile {}", layer.window,
                            refine.segment, refine.tile),
                "--window 128 --segment 256 --tile 128, for example");
  if (!(refine.tile_factor > 0 && std::isfinite(refine.tile_factor)))
    throw Error(fmt::format("tile factor {} makes no sense", refine.tile_factor), "1 or more");
}

// A tau that layers choose from the first tokens of a sequence, where all of them attend exactly.
void check_auto(const LayerPlan& layer, const LayerPlan* above, const PlanShape& shape) {
  if (above != nullptr && above->tau_auto != layer.tau_auto)
    throw Error("some layers of the plan have tau auto, others their own",
                "each looks at the layer before: give all of them tau auto, or none");
  if (!layer.tau_auto) return;
  if (layer.mode != AttentionMode::kKeys)
    throw Error(fmt::format("tau auto does not go with attention {}", mode_name(layer.mode)),
                "--attention keys, or a tau of your choice");
  if (!shape.causal)
    throw Error("tau auto does not go with an encoder, which has no first tokens",
                "a tau of your choice");
  if (layer.reuse)
    throw Error("a layer that reuses sets has no tau of its own, so it cannot be auto",
                "let the layer select its own");
  if (layer.window + layer.block < kAutoTokens)
    throw Error(
        fmt::format("tau auto is chosen from the first {} tokens, window {} and block {} "
                    "merge some of them before",
                    kAutoTokens, layer.window, layer.block),
        fmt::format("--window and --block of {} together, or a tau of your choice", kAutoTokens));
}

// above: the selected layer before, nullptr for none. in_force: the taus of its sets.
void check_reuse(const LayerPlan& layer, const LayerPlan* above,
                 const std::vector<double>& in_force) {
  if (above == nullptr)
    throw Error("the plan's first selected layer reuses a set that nobody chose",
                "let the first accelerated layer select its own");
  // The paper's owners are the nearest by absolute cosine and may be later tokens; the other modes
  // count on owners that are alike and, in a causal model, earlier.
  if ((layer.mode == AttentionMode::kPaper) != (above->mode == AttentionMode::kPaper))
    throw Error(fmt::format("attention {} cannot reuse the sets of attention {}: their tokens have "
                            "other owners",
                            mode_name(layer.mode), mode_name(above->mode)),
                "let the layer select its own");
  for (const HeadPlan& head : layer.heads)
    if (head.kind == HeadKind::kClusters &&
        std::find(in_force.begin(), in_force.end(), head.tau) == in_force.end())
      throw Error(fmt::format("a layer reuses the set of tau {}, but the layer before chose for {}",
                              head.tau, fmt::join(in_force, ", ")),
                  "give the head one of these, or let the layer select its own");
}

}  // namespace

std::string_view mode_name(AttentionMode mode) {
  return mode == AttentionMode::kBaseline ? "baseline" : name_in(kModes, mode);
}
std::string_view attention_name(const UniformAttention& choice) {
  return choice.mode == AttentionMode::kBaseline ? baseline_name(choice.baseline.kind)
                                                 : mode_name(choice.mode);
}
std::optional<AttentionMode> mode_of(std::string_view name) { return value_in(kModes, name); }
std::string_view space_name(SelectSpace space) { return name_in(kSpaces, space); }
std::optional<SelectSpace> space_of(std::string_view name) { return value_in(kSpaces, name); }
std::string_view far_name(FarKey far) { return name_in(kFars, far); }
std::optional<FarKey> far_of(std::string_view name) { return value_in(kFars, name); }
std::string_view kind_name(HeadKind kind) { return name_in(kKinds, kind); }
std::optional<HeadKind> kind_of(std::string_view name) { return value_in(kKinds, name); }
std::string_view cache_name(CacheKind kind) { return name_in(kCacheKinds, kind); }
std::optional<CacheKind> cache_of(std::string_view name) { return value_in(kCacheKinds, name); }

bool LayerPlan::clusters() const {
  return mode != AttentionMode::kDense &&
         std::any_of(heads.begin(), heads.end(),
                     [](const HeadPlan& head) { return head.kind == HeadKind::kClusters; });
}

std::vector<double> LayerPlan::taus() const {
  std::vector<double> taus;
  for (const HeadPlan& head : heads)
    if (head.kind == HeadKind::kClusters) taus.push_back(head.tau);
  if (taus.empty()) taus.push_back(0);
  std::sort(taus.begin(), taus.end());
  taus.erase(std::unique(taus.begin(), taus.end()), taus.end());
  return taus;
}

bool has_paper(const AttentionPlan& plan) {
  return std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const LayerPlan& layer) { return layer.mode == AttentionMode::kPaper; });
}

bool AttentionPlan::keeps_every_key() const {
  return std::none_of(layers.begin(), layers.end(),
                      [](const LayerPlan& layer) { return layer.selects(); });
}

bool AttentionPlan::all_dense() const {
  return std::all_of(layers.begin(), layers.end(),
                     [](const LayerPlan& layer) { return layer.mode == AttentionMode::kDense; });
}

bool AttentionPlan::all_exact() const {
  return all_dense() && std::all_of(layers.begin(), layers.end(), [](const LayerPlan& layer) {
           return layer.cache == CacheKind::kExact;
         });
}

bool PlanShape::stays_dense(int64_t layer) const {
  const int64_t window = windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  return capped || (window > 0 && window < context);
}

int64_t default_refine_window(int64_t context) { return context <= 2048 ? 128 : 0; }

RefinePlan with_defaults(RefinePlan plan, int64_t window, int64_t context) {
  if (plan.segment == 0) {
    plan.segment = 128;
    while (plan.segment < 512 && plan.segment * 16 < context) plan.segment *= 2;
  }
  if (plan.early == 0 && plan.page > 0) {
    const int64_t quarter = plan.segment / 4;
    const bool fits = plan.segment % 4 == 0 && quarter % plan.page == 0 && quarter >= 2 * plan.page;
    plan.early = fits ? quarter : plan.segment;
  }
  if (plan.tile == 0)
    plan.tile = std::min({int64_t{128}, plan.segment, window > 0 ? window : plan.segment});
  return plan;
}

LayerPlan layer_plan(const UniformAttention& choice, const PlanShape& shape) {
  LayerPlan layer;
  layer.mode = choice.mode;
  layer.cache = choice.cache;
  if (choice.mode == AttentionMode::kBaseline) {
    layer.baseline = choice.baseline;
    layer.baseline.context = shape.context;
    return layer;
  }
  if (choice.mode == AttentionMode::kRefine) {
    const int64_t window = default_refine_window(shape.context), tile = choice.refine.tile;
    layer.window = choice.window.value_or(tile > 0 && window % tile != 0 ? 0 : window);
    layer.refine = with_defaults(choice.refine, layer.window, shape.context);
    layer.sinks = choice.sinks.value_or(shape.causal ? 4 : 0);
    if (choice.refine.early == 0 && layer.sinks > layer.refine.early - layer.refine.page)
      layer.refine.early = layer.refine.segment;
    layer.heads.assign(static_cast<size_t>(shape.n_kv_heads), {.delta = choice.delta});
    return layer;
  }
  const bool paper_mode = choice.mode == AttentionMode::kPaper;
  layer.rule =
      choice.rule.value_or(paper_mode ? SelectRule::kCascadePaper : SelectRule::kCascadeCover);
  const bool paper = paper_mode || is_paper_setting(layer.rule);
  layer.space = choice.space.value_or(paper ? SelectSpace::kResidual : SelectSpace::kNormed);
  layer.sinks = choice.sinks.value_or(paper || !shape.causal ? 0 : 4);
  layer.outlier_ratio = choice.outlier_ratio.value_or(paper ? 0.0 : 8.0);
  layer.joint = choice.joint;
  const bool small_window = choice.window && *choice.window > 0 && *choice.window < 128;
  layer.block = choice.block.value_or(small_window ? *choice.window : 128);
  layer.window = choice.window.value_or(layer.block * ((128 + layer.block - 1) / layer.block));
  layer.heads.assign(
      static_cast<size_t>(shape.n_kv_heads),
      {.kind = HeadKind::kClusters, .tau = choice.tau_auto ? 0 : choice.tau, .far = choice.far});
  layer.tau_auto = choice.tau_auto;
  return layer;
}

AttentionPlan uniform_plan(const UniformAttention& choice, const PlanShape& shape) {
  if (choice.from_layer < 0 || choice.from_layer >= shape.n_layers)
    throw Error(fmt::format("the model has no layer {}", choice.from_layer),
                fmt::format("--from-layer takes 0 to {}", shape.n_layers - 1));
  AttentionPlan plan;
  plan.layers.assign(static_cast<size_t>(shape.n_layers), dense_layer(choice.cache));
  if (choice.mode == AttentionMode::kDense) return plan;
  for (int64_t i = choice.from_layer; i < shape.n_layers; ++i)
    if (!shape.stays_dense(i)) plan.layers[static_cast<size_t>(i)] = layer_plan(choice, shape);
  check_plan(plan, shape);
  return plan;
}

AttentionPlan fitted(AttentionPlan plan, const PlanShape& shape) {
  for (int64_t i = 0; i < std::ssize(plan.layers); ++i)
    if (LayerPlan& layer = plan.layers[static_cast<size_t>(i)]; shape.stays_dense(i))
      layer = dense_layer(layer.cache);
  return plan;
}

AttentionPlan at_length(AttentionPlan plan, int64_t n_tokens) {
  for (LayerPlan& layer : plan.layers)
    if (layer.mode == AttentionMode::kBaseline) layer.baseline.context = n_tokens;
  return plan;
}

void check_plan(const AttentionPlan& plan, const PlanShape& shape) {
  if (static_cast<int64_t>(plan.layers.size()) != shape.n_layers)
    throw Error(
        fmt::format("the plan has {} layers, the model {}", plan.layers.size(), shape.n_layers),
        "was the plan made for this model?");
  SLUICE_CHECK(shape.windows.empty() || shape.windows.size() == plan.layers.size());
  const LayerPlan* above = nullptr;  // the selected layer before
  std::vector<double> in_force;      // taus of the sets it has
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    check_cache_kind(layer);
    if (layer.mode == AttentionMode::kDense || shape.stays_dense(static_cast<int64_t>(i))) continue;
    if (layer.mode == AttentionMode::kBaseline) {
      check_baseline(layer.baseline, shape.causal);
      continue;
    }
    check_heads(layer, shape);
    if (layer.mode == AttentionMode::kRefine) {
      check_refine_sizes(layer);
      continue;
    }
    check_selection(layer);
    if (layer.mode == AttentionMode::kKeys && shape.causal) check_border(layer);
    check_auto(layer, above, shape);
    if (layer.reuse)
      check_reuse(layer, above, in_force);
    else
      in_force = layer.taus();
    above = &layer;
  }
}

}  // namespace sluice::impl
