#include "eval/analyze_results.h"

#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using nlohmann::json;

// The mean over windows and its standard deviation; null where no window has the figure.
void put(json& to, std::string_view name, const RunningMean& figure) {
  const std::string key(name);
  to[key] = figure.count() > 0 ? json(figure.mean()) : json();
  to[key + "_sd"] = figure.count() > 0 ? json(figure.standard_deviation()) : json();
}

json set_json(const SetFigures& figures) {
  json set = json::object();
  for (const SetFigureName& entry : kSetFigureNames) put(set, entry.name, figures.*entry.figure);
  return set;
}

json layer_json(const LayerFigures& figures, int64_t layer, const std::vector<SetKind>& kinds,
                size_t leading) {
  json out = {{"layer", layer}, {"cascades", json::array()}, {"controls", json::object()}};
  const auto with_rule = [&](size_t k) {
    json set = set_json(figures.sets[k]);
    set["rule"] = kinds[k].name;
    return set;
  };
  for (size_t k = 0; k < kinds.size(); ++k)
    if (k < kCascadeSet)
      out[kinds[k].name] = set_json(figures.sets[k]);
    else if (kinds[k].rule == SelectRule::kFixed)
      out["controls"][kinds[k].name] = set_json(figures.sets[k]);
    else if (k != leading)
      out["cascades"].push_back(with_rule(k));
  out["cascade"] = with_rule(leading);
  for (const HeadFigures& head : figures.heads) {
    json entry = json::object();
    put(entry, "n_reps_independent", head.n_reps_independent);
    put(entry, "n_reps_cascade", head.n_reps_cascade);
    out["heads"].push_back(std::move(entry));
  }
  return out;
}

json summary_json(const Profile& profile, const std::vector<SetKind>& kinds, size_t leading) {
  json out = {{"first_deep_layer", profile.first_deep_layer}, {"sets", json::object()}};
  const SetSummary& independent = profile.summaries[kIndependentSet];
  const SetSummary& cascade = profile.summaries[leading];
  out["rule"] = kinds[leading].name;
  put(out, "mean_n_reps_independent", independent.n_reps);
  put(out, "mean_n_reps_cascade", cascade.n_reps);
  put(out, "mean_jaccard_prev", independent.jaccard_prev);
  put(out, "gram_savings_paper", cascade.savings_paper);
  put(out, "gram_savings_computed", cascade.savings_computed);
  for (size_t k = 0; k < kinds.size(); ++k)
    for (const SetSummaryName& entry : kSetSummaryNames)
      put(out["sets"][kinds[k].name], entry.name, profile.summaries[k].*entry.figure);
  return out;
}

}  // namespace

json profile_json(const Profile& profile, const std::vector<SelectRule>& rules) {
  const std::vector<SetKind> kinds = set_kinds(rules);
  const size_t leading = leading_set(rules);
  json run = {{"tau", profile.tau},
              {"n_tokens", profile.n_tokens},
              {"n_windows", profile.n_windows},
              {"space", row_space_name(profile.space)},
              {"layers", json::array()}};
  for (size_t l = 0; l < profile.layers.size(); ++l)
    run["layers"].push_back(layer_json(profile.layers[l], static_cast<int64_t>(l), kinds, leading));
  run["summary"] = summary_json(profile, kinds, leading);
  return run;
}

}  // namespace sluice
