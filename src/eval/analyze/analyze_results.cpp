#include "eval/analyze/analyze_results.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/analyze/paper_tables.h"
#include "select/rules.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

// One row for each set of a layer, independent ones first.
void append_rows(const LayerFigures& figures, int64_t layer, const Profile& profile,
                 const std::vector<SetKind>& kinds, json& rows) {
  for (size_t k = 0; k < kinds.size(); ++k) {
    json row = set_json(figures.sets[k]);
    row.update({{"layer", layer}, {"rule", kinds[k].name}, {"tau", profile.tau}});
    rows.push_back(std::move(row));
  }
}

void append_heads(const LayerFigures& figures, int64_t layer, json& heads) {
  for (size_t h = 0; h < figures.heads.size(); ++h) {
    json row = {{"layer", layer}, {"head", h}};
    put_figure(row, "n_reps_independent", figures.heads[h].n_reps_independent);
    put_figure(row, "n_reps_cascade", figures.heads[h].n_reps_cascade);
    heads.push_back(std::move(row));
  }
}

json summary_json(const Profile& profile, const std::vector<SetKind>& kinds, size_t leading) {
  json out = {{"first_deep_layer", profile.first_deep_layer}, {"sets", json::object()}};
  const SetSummary& independent = profile.summaries[kIndependentSet];
  const SetSummary& cascade = profile.summaries[leading];
  out["rule"] = kinds[leading].name;
  put_figure(out, "mean_n_reps_independent", independent.n_reps);
  put_figure(out, "mean_n_reps_cascade", cascade.n_reps);
  put_figure(out, "mean_jaccard_prev", independent.jaccard_prev);
  put_figure(out, "gram_savings_paper", cascade.savings_paper);
  put_figure(out, "gram_savings_computed", cascade.savings_computed);
  for (size_t k = 0; k < kinds.size(); ++k)
    for (const SetSummaryName& entry : kSetSummaryNames)
      put_figure(out["sets"][kinds[k].name], entry.name, profile.summaries[k].*entry.figure);
  return out;
}

json settings_json(const AnalyzeFindings& findings) {
  const AnalyzeOptions& options = findings.options;
  std::vector<std::string_view> spaces, rules;
  for (const RowSpace space : options.spaces) spaces.push_back(row_space_name(space));
  for (const SelectRule rule : options.rules) rules.push_back(rule_name(rule));
  return {{"tau", options.taus},
          {"space", spaces},
          {"select", rules},
          {"context", findings.contexts},
          {"windows", options.n_windows},
          {"sinks", options.sinks},
          {"outlier_ratio", options.outlier_ratio},
          {"first_deep_layer", options.first_deep_layer},
          {"seed", options.seed}};
}

// What the paper printed of the model, layer by layer.
json paper_json(const PaperModel& paper) {
  json counts = json::array(), coherence = json::array(), layers = json::array();
  for (const PaperModel::Count& row : paper.counts)
    counts.push_back({{"layer", row.layer}, {"n_reps", row.n_reps}});
  // Table 1 names a pair by its first layer, jaccard_prev by its second.
  for (const PaperModel::Coherence& row : paper.coherence)
    coherence.push_back({{"layer", row.layer + 1}, {"jaccard", row.jaccard}});
  for (const PaperModel::Layer& row : paper.layers)
    layers.push_back({{"layer", row.layer},
                      {"n_reps_independent", row.n_reps_independent},
                      {"n_reps_cascade", row.n_reps_cascade},
                      {"jaccard_prev", row.change ? json(row.change->jaccard_prev) : json()},
                      {"turnover", row.change ? json(row.change->turnover) : json()}});
  return {{"name", paper.name},          {"tau", kPaperTau},
          {"n_tokens", kPaperTokens},    {"space", row_space_name(RowSpace::kResidual)},
          {"counts", std::move(counts)}, {"coherence", std::move(coherence)},
          {"layers", std::move(layers)}};
}

}  // namespace

void put_figure(json& to, std::string_view name, const RunningMean& figure) {
  const std::string key(name);
  to[key] = figure.count() > 0 ? json(figure.mean()) : json();
  to[key + "_sd"] = figure.count() > 0 ? json(figure.standard_deviation()) : json();
}

json set_json(const SetFigures& figures) {
  json set = json::object();
  for (const SetFigureName& entry : kSetFigureNames)
    put_figure(set, entry.name, figures.*entry.figure);
  return set;
}

json profile_json(const Profile& profile, const std::vector<SelectRule>& rules) {
  const std::vector<SetKind> kinds = set_kinds(rules);
  const size_t leading = leading_set(rules);
  json run = {{"tau", profile.tau},
              {"n_tokens", profile.n_tokens},
              {"n_windows", profile.n_windows},
              {"space", row_space_name(profile.space)},
              {"rows", json::array()}};
  json heads = json::array();
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    append_rows(profile.layers[l], static_cast<int64_t>(l), profile, kinds, run["rows"]);
    append_heads(profile.layers[l], static_cast<int64_t>(l), heads);
  }
  if (!heads.empty()) run["heads"] = std::move(heads);
  run["summary"] = summary_json(profile, kinds, leading);
  return run;
}

json analyze_results(const ResultsOrigin& origin, const AnalyzeFindings& findings) {
  int64_t n_tokens = 0;  // of the longest pass over the text
  for (const Profile& profile : findings.result.profiles)
    n_tokens = std::max(n_tokens, profile.n_windows * profile.n_tokens);
  json results = results_of("analyze", origin, n_tokens);
  results.update(describe_findings(origin.checkpoint.spec(), findings));
  return results;
}

json describe_findings(const ModelSpec& spec, const AnalyzeFindings& findings) {
  json out = {{"settings", settings_json(findings)}, {"runs", json::array()}};
  for (const Profile& profile : findings.result.profiles)
    out["runs"].push_back(profile_json(profile, findings.options.rules));
  if (findings.result.map) out["map"] = token_map_json(*findings.result.map, findings.tokenizer);
  if (const PaperModel* paper = paper_model_of(spec)) out["paper"] = paper_json(*paper);
  return out;
}

}  // namespace sluice::impl
