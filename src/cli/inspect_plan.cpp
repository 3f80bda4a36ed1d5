#include "cli/inspect_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/options/linear_options.h"
#include "cli/options/options.h"
#include "cli/terminal/print.h"
#include "cli/terminal/text_table.h"
#include "core/error.h"
#include "core/quote.h"
#include "eval/results.h"
#include "plan/plan_file.h"
#include "plan/plan_json.h"

namespace sluice::impl::cli {
namespace {

using nlohmann::json;

void print_line(const char* label, const std::string& text) { print("{:<14} {}\n", label, text); }

// ---- how it was made: objects of any content, shown where they are what tune writes ----

std::string figure_text(const json& object, const char* key, const char* format) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number()
             ? fmt::format(fmt::runtime(format), found->get<double>())
             : "";
}

std::string quality_text(const json& figures) {
  std::vector<std::string> parts;
  if (const std::string kl = figure_text(figures, "kl_mean", "KL {:.4g}"); !kl.empty())
    parts.push_back(kl + figure_text(figures, "kl_stderr", " ± {:.2g}"));
  parts.push_back(figure_text(figures, "ppl_ratio", "perplexity ratio {:.4f}"));
  parts.push_back(figure_text(figures, "n_tokens", "{:.0f} tokens"));
  parts.push_back(figure_text(figures, "n_documents", "{:.0f} documents"));
  std::erase(parts, "");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string time_text(const json& time) {
  const std::string dense = figure_text(time, "dense_ms", "dense {:.1f} ms");
  const std::string plan = figure_text(time, "plan_ms", "with the plan {:.1f} ms");
  return dense.empty() || plan.empty() ? dense + plan : dense + ", " + plan;
}

void print_provenance(const json& provenance) {
  if (!provenance.is_object()) return;
  const auto object = [&](const char* key) {
    const auto found = provenance.find(key);
    return found != provenance.end() && found->is_object() ? *found : json::object();
  };
  const auto print_some = [](const char* label, const std::string& text) {
    if (!text.empty()) print_line(label, text);
  };
  const auto text_of = [](const json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && found->is_string() ? path_label(found->get<std::string>()) : "";
  };
  print_some("predicted", figure_text(provenance, "predicted_kl", "KL {:.4g}"));
  print_some("calibration", quality_text(object("calibration")));
  print_some("held out", quality_text(object("held_out")));
  print_some("time", time_text(object("time")));
  print_some("text", text_of(object("text"), "path"));
  print_some("made by", text_of(provenance, "command_line"));
}

// ---- what it was made for ----

std::string contract_text(const std::optional<PlanContract>& contract) {
  std::vector<std::string> parts;
  const auto part = [&](const char* name, const std::optional<double>& most) {
    if (most) parts.push_back(fmt::format("{} up to {}", name, *most));
  };
  if (contract) {
    part("KL", contract->max_kl);
    part("its p99", contract->max_kl_p99);
    part("its p99.9", contract->max_kl_p999);
    part("perplexity ratio", contract->max_ppl_ratio);
  }
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

// What `generate` does with the plan, as why_dense() decides it.
std::string auto_text(const PlanFile& file) {
  if (!is_time(file.objective))
    return fmt::format("followed whatever its speed, by prompts of up to {} tokens", file.context);
  const std::optional<PlanAuto>& from = file.auto_from;
  if (!from) return "not measured";
  const auto part = [](const char* what, const std::optional<int64_t>& length) {
    return length ? fmt::format("{} from {} tokens", what, *length)
                  : fmt::format("{} at no length", what);
  };
  return "taken in " + part("prefill", from->prefill_from) + ", in " +
         part("decode", from->decode_from);
}

void print_purpose(const PlanFile& file, const std::string& path) {
  print_line("plan", path_label(path));
  print_line("model", fmt::format("{}, layers {}, key/value heads {}, sha256 {}...",
                                  path_label(file.model.family), file.model.n_layers,
                                  file.model.n_kv_heads, file.model.sha256.substr(0, 12)));
  print_line("context", fmt::format("{}", file.context));
  print_line("objective", std::string(objective_name(file.objective)));
  print_line("contract", contract_text(file.contract));
  print_provenance(file.provenance);
  print_line("auto", auto_text(file));
  if (const auto& measured = file.measured)
    print_line("measured",
               fmt::format("{}, {} thread{}, {}", path_label(measured->dtype), measured->threads,
                           measured->threads == 1 ? "" : "s", path_label(measured->device)));
  if (file.bases) print_line("bases", path_label(bases_path(*file.bases, path)));
}

// ---- layers ----

std::string taus_text(const LayerPlan& layer) {
  std::vector<std::string> parts;
  for (const HeadPlan& head : layer.heads) {
    if (head.kind != HeadKind::kClusters) continue;
    if (layer.mode == AttentionMode::kRefine) {
      parts.push_back(fmt::format("delta {}", head.delta));
      continue;
    }
    std::string text = fmt::format("{}", head.tau);
    if (layer.mode == AttentionMode::kKeys) text += fmt::format(" {}", far_name(head.far));
    parts.push_back(std::move(text));
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string groups_text(const LinearPlan& plan, size_t layer) {
  std::vector<std::string> parts;
  for (const BasisInput input : kLinearInputs) {
    if (plan.layers.empty()) break;
    const GroupPlan& group = plan.layers[layer].of(input);
    if (group.kind != LinearKind::kDense)
      parts.push_back(fmt::format("{}: {}", basis_input_name(input),
                                  linear_text({.kind = group.kind,
                                               .rank = group.rank,
                                               .epsilon = group.epsilon,
                                               .adaptive = group.adaptive})));
  }
  return parts.empty() ? "dense" : fmt::format("{}", fmt::join(parts, "; "));
}

// The cells of a layer behind its number.
std::vector<std::string> layer_cells(const Plan& plan, size_t index) {
  const LayerPlan& layer = plan.attention.layers[index];
  const std::string linear = groups_text(plan.linear, index);
  const std::string cache =
      layer.cache == CacheKind::kExact ? "" : fmt::format(", cache {}", cache_name(layer.cache));
  if (layer.mode == AttentionMode::kDense)
    return {"dense" + cache, "-", "-", "-", "-", "-", linear};
  const bool keys = layer.mode == AttentionMode::kKeys;
  if (layer.mode == AttentionMode::kRefine)
    return {"refine" + cache,
            fmt::format("clusters of {}, tile {}", layer.refine.page, layer.refine.tile),
            taus_text(layer),
            fmt::format("{} / {} / {}", layer.window, layer.refine.segment, layer.refine.early),
            fmt::format("{}", layer.sinks),
            "-",
            linear};
  const std::string selection =
      layer.reuse ? "reused"
                  : fmt::format("{}, {}{}", rule_name(layer.rule), space_name(layer.space),
                                layer.joint ? ", joint" : "");
  return {std::string(mode_name(layer.mode)),
          selection,
          taus_text(layer),
          keys ? fmt::format("{} / {}", layer.window, layer.block) : "-",
          layer.reuse ? "-" : fmt::format("{}", layer.sinks),
          layer.reuse ? "-" : fmt::format("{}", layer.outlier_ratio),
          linear};
}

// Neighbours that do the same share a row.
std::string layers_table(const Plan& plan) {
  const std::vector<std::string> columns = {
      "layers", "attention",     "selection",    "tau or delta", "window / block / early",
      "sinks",  "outlier ratio", "linear layers"};
  TextTable table("Layers", columns, columns.size());
  const size_t n_layers = plan.attention.layers.size();
  for (size_t first = 0, end = 0; first < n_layers; first = end) {
    const auto cells = layer_cells(plan, first);
    for (end = first + 1; end < n_layers && layer_cells(plan, end) == cells;) ++end;
    std::vector<Cell> row = {
        words(end == first + 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, end - 1))};
    for (const std::string& cell : cells) row.push_back(words(cell));
    table.add(std::move(row));
  }
  return table.markdown();
}

// ---- heads ----

const char* head_mark(const LayerPlan& layer, size_t head) {
  if (layer.mode == AttentionMode::kDense) return "█";
  const HeadPlan& plan = layer.heads[head];
  if (plan.kind != HeadKind::kClusters) return plan.kind == HeadKind::kDense ? "█" : "·";
  if (layer.mode == AttentionMode::kRefine)
    return plan.delta < 0.02 ? "▓" : plan.delta < 0.1 ? "▒" : "░";
  return plan.tau < 0.25 ? "▓" : plan.tau < 0.5 ? "▒" : "░";
}

// A row for each head, a column for each layer.
std::string heads_picture(const PlanFile& file) {
  const auto& layers = file.plan.attention.layers;
  std::string out = "Key/value heads, layers from left to right\n\n         ";
  for (size_t l = 0; l < layers.size(); l += 10) out += fmt::format("{:<10}", l);
  out.erase(out.find_last_not_of(' ') + 1);
  for (int64_t h = 0; h < file.model.n_kv_heads; ++h) {
    out += fmt::format("\nhead {:<3} ", h);
    for (const LayerPlan& layer : layers) out += head_mark(layer, static_cast<size_t>(h));
  }
  return out +
         "\n\n█ dense   ▓ clusters, tau below 0.25 or delta below 0.02   ▒ tau below 0.5 or "
         "delta below 0.1   ░ more   "
         "· window and exempt tokens\n";
}

// The file with every layer's mode and heads in it, so that dense ones need no special care.
json plan_results(const PlanFile& file) {
  json plan = plan_file_json(file);
  json layers = std::move(describe_plan(file.plan.attention, file.model.n_kv_heads)["layers"]);
  for (size_t l = 0; l < layers.size(); ++l) layers[l].update(plan["layers"][l]);
  plan["layers"] = std::move(layers);
  return plan;
}

}  // namespace

void run_inspect_plan(const InspectPlanOptions& options) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(options.plan, ignored) || options.plan.ends_with(".gguf"))
    throw Error(path_label(options.plan) + ": is not a plan", "a model is given with -m");
  if (!options.json.empty()) {
    if (fs::equivalent(options.json, options.plan, ignored))
      throw CLI::ValidationError(options.json + " is read and would be overwritten by --json");
    check_output(options.json);
  }
  const PlanFile file = read_plan_file(options.plan);
  print_purpose(file, options.plan);
  print("\n{}\n{}", layers_table(file.plan), heads_picture(file));
  if (options.json.empty()) return;
  json results = results_header("inspect", options.command_line, *make_cpu_backend(DType::kF32));
  results["plan"] = plan_results(file);
  results["model"] = results["plan"]["model"];
  write_json(results, options.json);
}

}  // namespace sluice::impl::cli
