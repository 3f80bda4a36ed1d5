// The tables of `analyze` on profiles made by hand: the paper's figures have rows of their own,
// and only where they are comparable.

#include "cli/analyze/analyze_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace sluice::impl::cli {
namespace {

using Row = std::vector<std::string>;

ModelSpec gptj_6b() {
  ModelSpec spec;
  spec.family = "gptj";
  spec.n_layers = 28;
  spec.d_model = 4096;
  spec.n_heads = spec.n_kv_heads = 16;
  spec.head_dim = 256;
  return spec;
}

void set_figures(SetFigures& set, double n_reps, double products, bool first) {
  set.n_reps.add(n_reps);
  set.rep_pairs.add(n_reps * n_reps);
  set.products_paper.add(products);
  set.products_computed.add(products / 2);
  if (first) return;
  set.n_inherited.add(n_reps);
  set.jaccard_prev.add(0.5);
  set.intersection_prev.add(7);
  set.additions.add(11);
  set.removals.add(13);
  set.turnover.add(0.25);
}

// One window: 200 independent representatives at every layer, 128 of every other set.
Profile profile_of(const std::vector<SelectRule>& rules, int64_t n_layers) {
  Profile profile;
  profile.tau = 0.3;
  profile.n_tokens = 512;
  profile.row_width = 4096;
  profile.first_deep_layer = 10;
  std::vector<LayerFigures> window(static_cast<size_t>(n_layers));
  for (size_t l = 0; l < window.size(); ++l) {
    window[l].sets.resize(set_kinds(rules).size());
    for (size_t k = 0; k < window[l].sets.size(); ++k)
      set_figures(window[l].sets[k], k == kIndependentSet ? 200 : 128,
                  k == kIndependentSet || l == 0 ? 512 * 512 : 512 * 128, l == 0);
  }
  profile.add_window(window);
  return profile;
}

class AnalyzeTables : public testing::Test {
 protected:
  explicit AnalyzeTables(std::vector<SelectRule> rules = {SelectRule::kCascadePaper})
      : report{.model_name = "model",
               .spec = spec,
               .rules = std::move(rules),
               .exempts = false,
               .profiles = {}} {
    make_profile();
  }
  void make_profile() { report.profiles = {profile_of(report.rules, spec.n_layers)}; }
  Profile& profile() { return report.profiles.front(); }

  // A table of the report in Markdown, by the beginning of its title; empty where it has no rows.
  std::string table(const std::string& title) {
    std::vector<TextTable> tables = layer_tables(report, profile());
    for (TextTable& more : summary_tables(report)) tables.push_back(std::move(more));
    for (const TextTable& found : tables)
      if (found.markdown().starts_with(title)) return found.empty() ? "" : found.markdown();
    ADD_FAILURE() << "no " << title;
    return "";
  }
  // The cells of its row with this label; empty where there is none.
  Row row(const std::string& title, const std::string& label) {
    std::istringstream lines(table(title));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      Row cells;
      for (std::string field; std::getline(fields, field, '|');) {
        const size_t begin = field.find_first_not_of(' ');
        cells.push_back(begin == field.npos
                            ? ""
                            : field.substr(begin, field.find_last_not_of(' ') + 1 - begin));
      }
      if (cells.size() > 1 && cells[1] == label) return Row(cells.begin() + 2, cells.end());
    }
    return {};
  }
  std::string all_tables() {
    std::string text;
    for (const TextTable& found : layer_tables(report, profile())) text += found.markdown();
    for (const TextTable& found : summary_tables(report)) text += found.markdown();
    return text;
  }

  ModelSpec spec = gptj_6b();
  AnalyzeReport report;
};

TEST_F(AnalyzeTables, PaperRowsAreThePapersAndSayIt) {
  EXPECT_EQ(row("Table 1.", "0-1 paper"), (Row{"69", "80", "0.863", "69", "-"}));
  EXPECT_EQ(row("Table 2.", "0-1 paper"), (Row{"-", "200", "80", "131", "0", "189.9%"}));
  EXPECT_EQ(row("Table 2.", "0-1"), (Row{"128.0", "128.0", "200.0", "11.0", "13.0", "25.0%"}));
  EXPECT_EQ(row("Table 4.", "27 paper"), (Row{"207", "0.404", "2.5x"}));
  EXPECT_EQ(row("Table 5.", "0 paper"), (Row{"69", "-", "69", "-", "-", "-", "-"}));
  EXPECT_EQ(row("Table 5.", "15 paper"), (Row{"255", "-", "278", "0.985", "2", "5", "3%"}));
  EXPECT_EQ(row("Table 6.", "GPT-J 6B paper"),
            (Row{"cascade-paper", "7.340M", "3.510M", "52%", "0.940", "-", "-", "-"}));
  EXPECT_EQ(row("Table 7.", "GPT-J 6B paper"),
            (Row{"cascade-paper", "10-27", "237", "262", "1.11"}));
  EXPECT_EQ(row("Table 8.", "GPT-J 6B paper, estimate"),
            (Row{"512", "240", "2.1", "52%", "-", "-"}));
  EXPECT_EQ(row("Table 9.", "GPT-J 6B paper"),
            (Row{"28", "4096", "205", "0.940", "52%", "3-18%", "1"}));
}

TEST_F(AnalyzeTables, TableTwoHasThePapersRowsOnly) {
  const std::string text = table("Table 2.");
  for (const char* shown : {"0-1", "3-4", "9-10", "14-15", "19-20", "24-25", "26-27"})
    EXPECT_NE(text.find(std::string("| ") + shown + " paper"), text.npos) << shown;
  for (const char* absent : {"1-2", "2-3", "4-5"})
    EXPECT_EQ(text.find(std::string("| ") + absent + " paper"), text.npos) << absent;
}

TEST_F(AnalyzeTables, SavingsOfTableEightAreOfALayerThatInherits) {
  // 28 layers of 512^2 over the first layer's 512^2 and 27 of 512 * 128.
  EXPECT_EQ(row("Table 8.", "tau 0.3, T 512, residual"),
            (Row{"512", "128.0", "4.0", "75.0%", "3.61x", "72.3%"}));
}

TEST_F(AnalyzeTables, TauZeroComparesNothing) {
  profile().tau = 0;
  for (SetSummary& summary : profile().summaries) {
    summary.products_paper = {};
    summary.products_paper.add(0);
  }
  EXPECT_EQ(row("Table 8.", "tau 0, T 512, residual")[4], "-");
  EXPECT_EQ(all_tables().find("nan"), std::string::npos);
}

TEST_F(AnalyzeTables, KeySpaceCountsTheProductsOfAllHeads) {
  profile().space = RowSpace::kKey;
  profile().n_sets_per_layer = 16;
  profile().row_width = 256;
  const Row found = row("Table 6.", "tau 0.3, T 512, key");  // of greedy
  EXPECT_EQ(found[1], "117.441M");                           // 16 * 28 * 512^2
  EXPECT_EQ(found[5], "58.720M");
}

TEST_F(AnalyzeTables, OtherSettingsHaveNothingOfThePaper) {
  const auto expect_none = [&](const char* what) {
    EXPECT_EQ(all_tables().find(" paper "), std::string::npos) << what;
  };
  const auto shown = [&] { return all_tables().find(" paper ") != std::string::npos; };
  ASSERT_TRUE(shown());
  report.exempts = true;
  expect_none("exempt tokens");
  report.exempts = false;
  profile().tau = 0.5;
  expect_none("tau");
  profile().tau = 0.3;
  profile().space = RowSpace::kNormed;
  expect_none("space");
  profile().space = RowSpace::kResidual;
  spec.d_model = 192;
  expect_none("model");
  spec.d_model = 4096;
  ASSERT_TRUE(shown());
}

TEST_F(AnalyzeTables, AnotherLengthHasOnlyTheEstimateForIt) {
  profile().n_tokens = 1024;
  EXPECT_EQ(row("Table 8.", "GPT-J 6B paper, estimate"),
            (Row{"1024", "280", "3.7", "72%", "-", "-"}));
  EXPECT_EQ(row("Table 9.", "GPT-J 6B paper"), Row{});
  EXPECT_EQ(table("Table 5.").find(" paper |"), std::string::npos);
}

class TablesOfAnotherRule : public AnalyzeTables {
 protected:
  TablesOfAnotherRule() : AnalyzeTables({SelectRule::kCascadeCover, SelectRule::kCascadePaper}) {}
};

TEST_F(TablesOfAnotherRule, ThePapersCascadeStaysAway) {
  EXPECT_EQ(row("Table 1.", "0-1 paper"), (Row{"69", "80", "0.863", "69", "-"}));
  EXPECT_EQ(row("Table 2.", "0-1 paper"), Row{});
  EXPECT_EQ(row("Table 5.", "0 paper"), (Row{"69", "-", "-", "-", "-", "-", "-"}));
  EXPECT_EQ(row("Table 5.", "15 paper"), (Row{"255", "-", "-", "0.985", "-", "-", "-"}));
  EXPECT_EQ(row("Table 8.", "GPT-J 6B paper, estimate"), Row{});
  EXPECT_EQ(row("Table 9.", "GPT-J 6B paper"), (Row{"28", "4096", "205", "0.940", "-", "-", "1"}));
}

class TablesWithoutACascade : public AnalyzeTables {
 protected:
  TablesWithoutACascade() : AnalyzeTables({SelectRule::kGreedy}) {}
};

TEST_F(TablesWithoutACascade, NothingIsSaidOfInheritance) {
  EXPECT_EQ(table("Table 2."), "");
  EXPECT_EQ(table("Table 8."), "");
  EXPECT_EQ(table("Table 5.").find("cascade"), std::string::npos);
  EXPECT_NE(table("Table 9.").find("greedy"), std::string::npos);
  EXPECT_EQ(row("Table 6.", "tau 0.3, T 512, residual")[0], "greedy");
}

}  // namespace
}  // namespace sluice::impl::cli
