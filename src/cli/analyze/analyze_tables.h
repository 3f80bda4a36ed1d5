// What `analyze` prints: the paper's tables in its own form, and those that its readers missed.

#pragma once

#include "cli/terminal/text_table.h"
#include "eval/analyze/paper_tables.h"
#include "eval/analyze/profile.h"

namespace sluice::impl::cli {

struct AnalyzeReport {
  std::string model_name;
  const ModelSpec& spec;
  std::vector<SelectRule> rules;  // as asked for
  bool exempts = false;           // sinks or outliers were left out
  std::vector<Profile> profiles;  // the first is shown layer by layer

  size_t leading() const { return leading_set(rules); }
  SetKind leading_kind() const { return set_kinds(rules)[leading()]; }
  bool leads_with(SelectRule rule) const { return leading_kind().rule == rule; }
};

// The figures of the paper, where a profile has the same model, tau, length and space; else
// nullptr. Those of its cascade are comparable with the rule `cascade-paper` only.
const PaperModel* comparable_paper(const AnalyzeReport& report, const Profile& profile);
const PaperModel* comparable_paper_cascade(const AnalyzeReport& report, const Profile& profile);
// "tau 0.3, T 512, residual".
std::string profile_label(const Profile& profile);

// The sentence that the command ends with: what came out, and what to try next.
std::string analyze_conclusion(const AnalyzeReport& report);

// Layer by layer, the leading set of the first profile.
TextTable depth_table(const AnalyzeReport& report);
// Every set of the first profile, over all layers.
TextTable cascade_table(const AnalyzeReport& report);

// Tables 1, 2, 4 and 5 of one profile.
std::vector<TextTable> layer_tables(const AnalyzeReport& report, const Profile& profile);
// Tables 6 to 9 and the cost model, over all profiles.
std::vector<TextTable> summary_tables(const AnalyzeReport& report);
// What the paper does not show of one profile: sets against the same layer's independent set.
TextTable agreement_table(const AnalyzeReport& report, const Profile& profile);
TextTable matrix_table(const AnalyzeReport& report, const Profile& profile);
TextTable missed_table(const AnalyzeReport& report, const Profile& profile);
// Attention error against the bound of Proposition 2, layer by layer.
TextTable bound_table(const Profile& profile);
// Distances of redundant pairs from layer to layer against Proposition 3.
TextTable persistence_table(const Profile& profile);
// Sets per key/value head against a shared one of the same tau and length, which may be missing.
TextTable head_table(const AnalyzeReport& report, const Profile& profile);
// r against tau; empty with a single tau.
TextTable covering_table(const AnalyzeReport& report);

}  // namespace sluice::impl::cli
