// plan.json -> PlanFile.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <iterator>
#include <limits>

#include "core/error.h"
#include "io/json/parse.h"
#include "io/json/value.h"
#include "plan/plan_file.h"
#include "sluice/version.h"

namespace sluice::impl {
namespace {

constexpr JsonLimits kLimits = {.bytes = kMaxPlanBytes, .values = size_t{1} << 20};
constexpr int64_t kMaxLayers = 1024, kMaxHeads = 256;  // of a model: a picture of 2^18 heads
constexpr int64_t kMaxCount = int64_t{1} << 30;        // of tokens or directions

// What the rest of the file has told when the layers are read.
struct LayerReader {
  const PlanModel& model;
  bool has_bases;

  HeadPlan head(const JsonValue& value, AttentionMode mode) const;
  LayerPlan attention(const JsonValue& value) const;
  GroupPlan group(const JsonValue& value) const;
  LayerLinearPlan linear(const JsonValue& value) const;
};

// Fields that say something in other layers.
template <typename Keys>
void expect_none(const JsonValue& value, const Keys& keys, const std::string& where) {
  for (const std::string_view key : keys)
    if (const auto found = value.find(key))
      found->refuse("has no meaning in " + where, "leave it out, or choose another mode or kind");
}

std::string sha256_text(const JsonValue& value) {
  const std::string& text = value.string(64);
  if (text.size() != 64 || text.find_first_not_of("0123456789abcdef") != text.npos)
    value.expected("a sha256", "64 hexadecimal digits, lower case");
  return text;
}

// Keys of layers that select, and of those that refine.
constexpr std::array kOfSelection = {"select", "space", "reuse", "joint", "outlier_ratio", "block"};
constexpr std::array kOfRefine = {"segment",     "early",    "page", "tile",
                                  "tile_factor", "clusters", "rule"};

RefinePlan refine(const JsonValue& value) {
  RefinePlan plan;
  const auto integer = [&](const char* key, int64_t& out) {
    if (const auto found = value.find(key)) out = found->integer(1, kMaxSegment);
  };
  integer("segment", plan.segment);
  plan.early = plan.segment;
  integer("early", plan.early);
  integer("page", plan.page);
  integer("tile", plan.tile);
  if (const auto factor = value.find("tile_factor")) plan.tile_factor = factor->number(0);
  for (const char* key : {"rule", "clusters"})
    if (const auto found = value.find(key); found && found->string(64) != kRefineRule)
      found->refuse("is of an earlier version, and the deltas belong to it",
                    "make a new plan: sluice tune -m MODEL -f TEXT --max-kl LOSS -o PLAN");
  return plan;
}

HeadPlan LayerReader::head(const JsonValue& value, AttentionMode mode) const {
  value.expect_keys({"kind", "tau", "far", "delta"});
  HeadPlan head;
  head.kind = value.at("kind").named(kind_of, "dense, window or clusters");
  if (head.kind != HeadKind::kClusters) {
    expect_none(value, std::array{"tau", "far", "delta"}, "a head without clusters");
    return head;
  }
  if (mode == AttentionMode::kRefine) {
    expect_none(value, std::array{"tau", "far"}, "mode refine");
    // JSON has no infinity: null stands for it.
    const bool infinite = value.raw().contains("delta") && !value.find("delta");
    head.delta = infinite ? std::numeric_limits<double>::infinity() : value.at("delta").number(0);
    return head;
  }
  expect_none(value, std::array{"delta"}, fmt::format("mode {}", mode_name(mode)));
  const JsonValue tau = value.at("tau");
  head.tau = tau.number(0, 1);
  if (head.tau == 1)
    tau.expected("a number below 1",
                 "0 merges nothing, 0.3 is the paper's, values near 1 merge almost everything");
  if (mode != AttentionMode::kKeys)
    expect_none(value, std::array{"far"}, fmt::format("mode {}", mode_name(mode)));
  if (const auto far = value.find("far")) head.far = far->named(far_of, "centroid, values or own");
  return head;
}

LayerPlan LayerReader::attention(const JsonValue& value) const {
  UniformAttention choice;
  if (const auto mode = value.find("mode"))
    choice.mode = mode->named(mode_of, "dense, refine, keys, copy or paper");
  if (const auto cache = value.find("cache"))
    choice.cache = cache->named(cache_of, "exact or int8");
  if (choice.mode == AttentionMode::kDense) {
    expect_none(value, std::array{"window", "sinks", "heads"}, "a dense layer");
    expect_none(value, kOfSelection, "a dense layer");
    expect_none(value, kOfRefine, "a dense layer");
    LayerPlan dense;
    dense.cache = choice.cache;
    return dense;
  }
  const std::string where = fmt::format("mode {}", mode_name(choice.mode));
  if (choice.mode == AttentionMode::kRefine) {
    expect_none(value, kOfSelection, where);
  } else {
    expect_none(value, kOfRefine, where);
    expect_none(value, std::array{"cache"}, where);
  }
  if (choice.mode == AttentionMode::kCopy || choice.mode == AttentionMode::kPaper)
    expect_none(value, std::array{"window", "block"}, where);
  const auto integer = [&](const char* key, int64_t min, std::optional<int64_t>& out) {
    if (const auto found = value.find(key)) out = found->integer(min, kMaxCount);
  };
  integer("sinks", 0, choice.sinks);
  integer("window", 0, choice.window);
  integer("block", 1, choice.block);
  if (const auto ratio = value.find("outlier_ratio")) choice.outlier_ratio = ratio->number(0);
  if (const auto space = value.find("space"))
    choice.space = space->named(space_of, "residual or normed");
  if (const auto rule = value.find("select")) {
    const std::vector<std::string> names = rule_names();
    const std::string rules =
        fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
    choice.rule = rule->named(rule_of, rules);
    if (choice.rule == SelectRule::kFixed)
      rule->expected(rules, "`reuse` takes the sets of the layer before as they are");
  }
  if (const auto joint = value.find("joint")) choice.joint = joint->boolean();

  if (choice.mode == AttentionMode::kRefine) choice.refine = refine(value);

  const JsonValue heads = value.at("heads");
  heads.expect_size(model.n_kv_heads, "model.n_kv_heads");
  // The defaults of docs/algorithm.md, section 1, in a causal model.
  LayerPlan layer = layer_plan(choice, {.n_layers = model.n_layers,
                                        .n_kv_heads = model.n_kv_heads,
                                        .causal = true,
                                        .context = kMaxCount});
  for (int64_t h = 0; h < model.n_kv_heads; ++h)
    layer.heads[static_cast<size_t>(h)] = head(heads.element(static_cast<size_t>(h)), layer.mode);
  if (const auto reuse = value.find("reuse")) layer.reuse = reuse->boolean();
  if (layer.joint && !layer.reuse && !has_bases)
    value.at("joint").refuse("needs bases, and the plan names none",
                             "sluice calibrate makes them; their place is `bases`");
  return layer;
}

GroupPlan LayerReader::group(const JsonValue& value) const {
  value.expect_keys({"kind", "rank", "epsilon", "adaptive"});
  GroupPlan group;
  group.kind = value.at("kind").named(linear_of, "dense, gsi or graded");
  if (group.kind == LinearKind::kDense) {
    expect_none(value, std::array{"rank", "epsilon", "adaptive"}, "a dense group");
    return group;
  }
  group.epsilon = value.at("epsilon").number(0, 1);
  if (group.kind == LinearKind::kGraded) {
    expect_none(value, std::array{"rank", "adaptive"}, "a graded group");
    return group;
  }
  group.rank = value.at("rank").integer(1, kMaxCount);
  if (const auto adaptive = value.find("adaptive"))
    group.adaptive = adaptive->integer(0, kMaxCount);
  if (!has_bases)
    value.refuse("gsi needs bases, and the plan names none",
                 "sluice calibrate makes them; their place is `bases`");
  return group;
}

LayerLinearPlan LayerReader::linear(const JsonValue& value) const {
  LayerLinearPlan plan;
  const auto groups = value.find("linear");
  if (!groups) return plan;
  groups->expect_keys({"attention_input", "attention_output", "mlp_input", "mlp_inner"});
  for (const BasisInput input : kLinearInputs)
    if (const auto found = groups->find(basis_input_name(input))) plan.of(input) = group(*found);
  return plan;
}

// Says of each layer what check_plan would say of the whole plan. A layer may take sets from those
// above it: the last that selected its own, and the last of all, whose mode counts.
class PlanChecker {
 public:
  explicit PlanChecker(const PlanModel& model) : model_(model) {}

  void check(const LayerPlan& layer, const JsonValue& place) {
    if (layer.mode == AttentionMode::kDense) return;
    AttentionPlan part;
    for (const LayerPlan* above : {selected_, above_})
      if (above != nullptr && layer.reuse) part.layers.push_back(*above);
    part.layers.push_back(layer);
    try {
      check_plan(part, {.n_layers = std::ssize(part.layers),
                        .n_kv_heads = model_.n_kv_heads,
                        .causal = true,
                        .context = kMaxCount});
    } catch (const Error& error) {
      place.refuse(error.what(), error.hint());
    }
    if (!layer.selects()) return;
    if (!layer.reuse) selected_ = &layer;
    above_ = &layer;
  }

 private:
  const PlanModel& model_;
  const LayerPlan *selected_ = nullptr, *above_ = nullptr;
};

Plan plan_of(const JsonValue& layers, const LayerReader& reader) {
  const int64_t n_layers = reader.model.n_layers;
  layers.expect_size(n_layers, "model.n_layers");
  Plan plan;
  plan.attention.layers.resize(static_cast<size_t>(n_layers));
  plan.linear.layers.resize(static_cast<size_t>(n_layers));
  PlanChecker checker(reader.model);
  for (int64_t l = 0; l < n_layers; ++l) {
    const JsonValue layer = layers.element(static_cast<size_t>(l));
    layer.expect_keys({"layer",       "mode",  "select",  "space",    "reuse",
                       "joint",       "sinks", "segment", "early",    "outlier_ratio",
                       "window",      "block", "page",    "tile",     "rule",
                       "tile_factor", "heads", "linear",  "clusters", "cache"});
    const JsonValue index = layer.at("layer");
    if (index.integer(0, kMaxLayers) != l)
      index.expected(fmt::format("{}", l), "every layer of the model, from the first to the last");
    LayerPlan& attention = plan.attention.layers[static_cast<size_t>(l)];
    attention = reader.attention(layer);
    checker.check(attention, layer);
    plan.linear.layers[static_cast<size_t>(l)] = reader.linear(layer);
  }
  if (plan.linear.all_dense()) plan.linear.layers.clear();
  return plan;
}

void check_format(const JsonValue& file) {
  const nlohmann::json& raw = file.raw();
  if (!raw.is_object() || !raw.contains("format") || raw["format"] != kPlanFormat)
    file.refuse(fmt::format("is not a plan of sluice: it has no format \"{}\"", kPlanFormat));
  const JsonValue version = file.at("version");
  const int64_t number = version.integer(1, kMaxCount);
  if (number > kPlanVersion)
    version.refuse(fmt::format("{} was made by a newer sluice; this is {}, which reads version {}",
                               number, SLUICE_VERSION, kPlanVersion),
                   "use that newer sluice, or make a plan with this one");
}

PlanModel model_of(const JsonValue& value) {
  value.expect_keys({"sha256", "family", "n_layers", "n_kv_heads"});
  return {.sha256 = sha256_text(value.at("sha256")),
          .family = value.at("family").string(100),
          .n_layers = value.at("n_layers").integer(1, kMaxLayers),
          .n_kv_heads = value.at("n_kv_heads").integer(1, kMaxHeads)};
}

PlanContract contract_of(const JsonValue& value) {
  value.expect_keys({"max_kl", "max_kl_p99", "max_kl_p999", "max_ppl_ratio"});
  const auto limit = [&](const char* key, double least) {
    const auto found = value.find(key);
    return found ? std::optional(found->number(least)) : std::nullopt;
  };
  return {.max_kl = limit("max_kl", 0),
          .max_kl_p99 = limit("max_kl_p99", 0),
          .max_kl_p999 = limit("max_kl_p999", 0),
          .max_ppl_ratio = limit("max_ppl_ratio", 1)};
}

PlanAuto auto_of(const JsonValue& value) {
  value.expect_keys({"prefill_from", "decode_from"});
  PlanAuto from;
  if (const auto found = value.find("prefill_from"))
    from.prefill_from = found->integer(0, kMaxCount);
  if (const auto found = value.find("decode_from")) from.decode_from = found->integer(0, kMaxCount);
  return from;
}

PlanMeasured measured_of(const JsonValue& value) {
  value.expect_keys({"dtype", "device", "threads"});
  const auto dtype_of_run = [](std::string_view name) {
    return name == "f32" || name == "bf16" ? std::optional(std::string(name)) : std::nullopt;
  };
  return {.dtype = value.at("dtype").named(dtype_of_run, "f32 or bf16"),
          .device = value.at("device").string(1000),
          .threads = value.at("threads").integer(1, kMaxCount)};
}

PlanBases bases_of(const JsonValue& value) {
  value.expect_keys({"path", "text_sha256"});
  const JsonValue path = value.at("path");
  if (leaves_folder(path.string(4096)))
    path.refuse("leads out of the plan's folder", "put the bases and the plan into one folder");
  return {.path = path.string(4096), .text_sha256 = sha256_text(value.at("text_sha256"))};
}

}  // namespace

PlanFile parse_plan_file(std::string_view text, const std::string& label) {
  const nlohmann::json tree = parse_json(text, label, kLimits);
  const JsonSource source{tree, label, "docs/plan.md says what a plan looks like"};
  const JsonValue root(source);
  check_format(root);
  root.expect_keys({"format", "version", "model", "context", "objective", "contract", "auto",
                    "measured", "bases", "provenance", "layers"});
  PlanFile file;
  file.model = model_of(root.at("model"));
  file.context = root.at("context").integer(1, kMaxCount);
  if (const auto found = root.find("objective"))
    file.objective = found->named(objective_of, "prefill, decode, memory, reads or decode-reads");
  if (const auto found = root.find("contract")) file.contract = contract_of(*found);
  if (const auto found = root.find("auto")) file.auto_from = auto_of(*found);
  if (const auto found = root.find("measured")) file.measured = measured_of(*found);
  if (const auto found = root.find("bases")) file.bases = bases_of(*found);
  if (const auto found = root.find("provenance")) {
    found->object();  // refuses whatever is not one
    file.provenance = found->raw();
  }
  file.plan =
      plan_of(root.at("layers"), {.model = file.model, .has_bases = file.bases.has_value()});
  return file;
}

}  // namespace sluice::impl
