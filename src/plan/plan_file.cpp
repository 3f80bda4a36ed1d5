#include "plan/plan_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/quote.h"
#include "io/mapped_file.h"
#include "io/write_file.h"
#include "plan/plan_json.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 5> kObjectives = {"prefill", "decode", "memory", "reads",
                                                         "decode-reads"};

json group_json(const GroupPlan& group) {
  json out = {{"kind", linear_name(group.kind)}, {"epsilon", group.epsilon}};
  if (group.kind != LinearKind::kGsi) return out;
  out["rank"] = group.rank;
  out["adaptive"] = group.adaptive;
  return out;
}

json layer_json(const LayerPlan& layer, json described) {
  if (layer.mode == AttentionMode::kDense) {
    json out = {{"layer", described["layer"]}};
    if (described.contains("cache")) out["cache"] = described["cache"];
    return out;
  }
  if (layer.mode == AttentionMode::kRefine) {
    described["sinks"] = layer.sinks;
    for (const char* key : {"reuse", "joint", "block"}) described.erase(key);
    return described;
  }
  described["select"] = rule_name(layer.rule);
  described["space"] = space_name(layer.space);
  described["sinks"] = layer.sinks;
  described["outlier_ratio"] = layer.outlier_ratio;
  if (layer.mode == AttentionMode::kKeys) return described;
  described.erase("window");
  described.erase("block");
  return described;
}

json layers_json(const PlanFile& file) {
  const auto n_layers = static_cast<size_t>(file.model.n_layers);
  AttentionPlan attention = file.plan.attention;
  if (attention.layers.empty()) attention.layers.resize(n_layers);
  const LinearPlan& linear = file.plan.linear;
  SLUICE_CHECK(attention.layers.size() == n_layers);
  SLUICE_CHECK(linear.layers.empty() || linear.layers.size() == n_layers);

  json layers = std::move(describe_plan(attention, file.model.n_kv_heads)["layers"]);
  for (size_t l = 0; l < n_layers; ++l) {
    layers[l] = layer_json(attention.layers[l], std::move(layers[l]));
    if (linear.layers.empty()) continue;
    for (const BasisInput input : kLinearInputs)
      if (const GroupPlan& group = linear.layers[l].of(input); group.kind != LinearKind::kDense)
        layers[l]["linear"][std::string(basis_input_name(input))] = group_json(group);
  }
  return layers;
}

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

// A layer that reuses sets decides no pairs.
bool decides_jointly(const AttentionPlan& plan) {
  return std::any_of(plan.layers.begin(), plan.layers.end(), [](const LayerPlan& layer) {
    return layer.selects() && layer.joint && !layer.reuse;
  });
}

}  // namespace

std::string_view objective_name(PlanObjective objective) {
  return kObjectives[static_cast<size_t>(objective)];
}

std::optional<PlanObjective> objective_of(std::string_view name) {
  for (size_t i = 0; i < kObjectives.size(); ++i)
    if (kObjectives[i] == name) return static_cast<PlanObjective>(i);
  return {};
}

std::string why_dense(const PlanFile& file, int64_t n_prompt, int64_t n_predict) {
  if (file.plan.attention.all_exact() && file.plan.linear.all_dense()) return "is dense";
  if (n_prompt > file.context)
    return fmt::format("was measured with up to {} tokens", file.context);
  // Nothing was measured, or time is not what it is for.
  if (!file.auto_from || !is_time(file.objective)) return "";
  const auto reaches = [&](const std::optional<int64_t>& from) {
    return from && n_prompt >= *from;
  };
  if (reaches(file.auto_from->prefill_from) &&
      (n_predict <= 1 || reaches(file.auto_from->decode_from)))
    return "";
  return "was not measured faster at this length";
}

json plan_file_json(const PlanFile& file) {
  SLUICE_CHECK(file.provenance.is_object() || file.provenance.is_null());
  json out = {{"format", kPlanFormat},
              {"version", kPlanVersion},
              {"model",
               {{"sha256", file.model.sha256},
                {"family", file.model.family},
                {"n_layers", file.model.n_layers},
                {"n_kv_heads", file.model.n_kv_heads}}},
              {"context", file.context},
              {"objective", objective_name(file.objective)},
              {"contract", nullptr},
              {"auto", nullptr},
              {"measured", nullptr},
              {"bases", nullptr},
              {"provenance", file.provenance},
              {"layers", layers_json(file)}};
  if (const auto& contract = file.contract)
    out["contract"] = {{"max_kl", or_null(contract->max_kl)},
                       {"max_kl_p99", or_null(contract->max_kl_p99)},
                       {"max_kl_p999", or_null(contract->max_kl_p999)},
                       {"max_ppl_ratio", or_null(contract->max_ppl_ratio)}};
  if (const auto& from = file.auto_from)
    out["auto"] = {{"prefill_from", or_null(from->prefill_from)},
                   {"decode_from", or_null(from->decode_from)}};
  if (const auto& measured = file.measured)
    out["measured"] = {
        {"dtype", measured->dtype}, {"device", measured->device}, {"threads", measured->threads}};
  if (const auto& bases = file.bases)
    out["bases"] = {{"path", bases->path}, {"text_sha256", bases->text_sha256}};
  return out;
}

void write_plan_file(const PlanFile& file, const std::filesystem::path& path) {
  // Paths may hold bytes that are not UTF-8.
  write_file(path, plan_file_json(file).dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

PlanFile read_plan_file(const std::filesystem::path& path) {
  return parse_plan_file(read_text_file(path, kMaxPlanBytes), path_label(path));
}

bool leaves_folder(const std::filesystem::path& path) {
  const std::filesystem::path normal = path.lexically_normal();
  return path.is_absolute() || (!normal.empty() && *normal.begin() == "..");
}

std::filesystem::path bases_path(const PlanBases& bases, const std::filesystem::path& plan_path) {
  return plan_path.parent_path() / bases.path;
}

void check_plan_file(const PlanFile& file, const std::string& label, const PlanTarget& target) {
  if (file.model.sha256 != target.sha256)
    throw Error(fmt::format("{}: made for another model (sha256 {}, this one's is {})", label,
                            quote(file.model.sha256), quote(target.sha256)),
                "a plan goes with the very files that it was made for");
  if (decides_jointly(file.plan.attention) && target.bases == nullptr)
    throw Error(label + ": has joint layers, and there are no bases for them",
                "sluice calibrate makes bases");
  if (file.bases && target.bases != nullptr && file.bases->text_sha256 != target.bases->text_sha256)
    throw Error(fmt::format("{}: made for other bases, those of a text with sha256 {}", label,
                            quote(file.bases->text_sha256)),
                "its `bases.path` says where they were");
  try {
    check_plan(file.plan.attention, target.shape);
    check_linear_plan(file.plan.linear, target.linear, target.bases);
  } catch (const Error& error) {
    throw Error(label + ": " + error.what(), error.hint());
  }
}

}  // namespace sluice::impl
