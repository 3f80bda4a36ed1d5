// Sets of trained checkpoints against a second implementation: tools/golden/selection.py, which is
// docs/algorithm.md in NumPy and float64 and shares no code with the program.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "eval/analyze/profile_sets.h"
#include "eval/text/windows.h"
#include "paths.h"
#include "sanitized.h"
#include "select/counters.h"
#include "select/inherit.h"
#include "select/rules.h"

namespace sluice::impl::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Case {
  const char* name;
  fs::path folder;
  std::unique_ptr<Backend> (*make)(DType);
  bool reference = false;
};
void PrintTo(const Case& golden, std::ostream* out) { *out << golden.folder << " " << golden.name; }

// Of each layer: tokens in the set, additions, removals.
using Counts = std::vector<std::array<int64_t, 3>>;

class SelectionGolden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const fs::path& folder = GetParam().folder;
    if (!fs::exists(folder / "model.safetensors"))
      GTEST_SKIP() << folder.string() << " is not here: no trained checkpoint to compare with";
    if (kSanitized && GetParam().reference)
      GTEST_SKIP() << "plain loops over a trained model take minutes under a sanitizer";
    backend_ = GetParam().make(DType::kF32);
    golden_ = json::parse(
        std::ifstream(test::golden_dir() / "selection" / (folder.filename().string() + ".json")));
    ids_ = golden_.at("ids").get<std::vector<int32_t>>();
    // Where plain loops are tested, they select; the rest of the model takes too long with them.
    model_.emplace(open_checkpoint(folder), make_cpu_backend(DType::kF32), LoadOptions{});
  }

  // Losses and sets of a uniform plan at the golden's tau and window.
  void expect_mode(AttentionMode mode) {
    const json& expected = golden_.at("modes").at(std::string(mode_name(mode)));
    UniformAttention choice;
    choice.mode = mode;
    choice.window = golden_.at("window").get<int64_t>();
    choice.tau = golden_.at("tau");
    const AttentionPlan plan = uniform_plan(choice, model_->plan_shape());
    KvCache cache = model_->make_cache(1, std::ssize(ids_), plan);
    // Float32 against float64: 1.4e-6 was measured in `copy`, 5e-7 in `paper`.
    EXPECT_NEAR(mean_loss(model_->forward(ids_, cache)), expected.at("loss").get<double>(), 5e-5);
    Counts found;
    const TokenSet* before = nullptr;
    for (int64_t layer = 0; layer < model_->spec().n_layers; ++layer) {
      const TokenSet& set = cache.accelerated(layer)->decided(0).sets()[0];
      found.push_back({n_reps(set), 0, 0});
      if (before != nullptr) {
        const Turnover change = turnover(*before, set);
        found.back() = {n_reps(set), change.additions, change.removals};
      }
      before = &set;
    }
    const std::string rule(rule_name(plan.layers[0].rule));
    EXPECT_EQ(found, expected.at("counts").at(rule).get<Counts>()) << rule;
  }

  double mean_loss(const ConstTensor& hidden) {
    std::vector<float> scores(static_cast<size_t>(hidden.rows() * model_->spec().vocab));
    const Tensor rows(scores.data(), DType::kF32, {hidden.rows(), model_->spec().vocab});
    model_->logits(hidden, rows);
    double sum = 0;
    for (size_t t = 0; t + 1 < ids_.size(); ++t) {
      const float* row = rows.row<float>(static_cast<int64_t>(t));
      double total = 0;
      for (int64_t i = 0; i < model_->spec().vocab; ++i) total += std::exp(double{row[i]});
      sum += std::log(total) - double{row[ids_[t + 1]]};
    }
    return sum / static_cast<double>(ids_.size() - 1);
  }

  json golden_;
  std::vector<int32_t> ids_;
  std::optional<Model> model_;
  std::unique_ptr<Backend> backend_;  // that selects
};

// The window has no decision near its threshold (`margin` in the file), so counts are equal.
TEST_P(SelectionGolden, EveryRuleCountsTheSameInEveryLayer) {
  const std::vector<SelectRule> rules = {SelectRule::kCascadePaper, SelectRule::kCascadeCausal,
                                         SelectRule::kCascadeCover};
  ProfileSets sets(*backend_,
                   {.rules = rules, .tau = golden_.at("tau"), .row_width = model_->spec().d_model});
  sets.begin_window(0);
  const std::vector<SetKind> kinds = set_kinds(rules);
  std::vector<Counts> found(kinds.size());
  KvCache cache = model_->make_cache(1, std::ssize(ids_));
  const ConstTensor hidden = observed_forward(*model_, ids_, cache, [&](const AttentionSeen& seen) {
    std::vector<SetFigures> figures;
    sets.add_layer(seen.residual, seen.residual, figures);
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      const auto count = [&](RunningMean SetFigures::*figure) {
        return static_cast<int64_t>((figures[kind].*figure).mean());
      };
      found[kind].push_back({count(&SetFigures::n_reps), count(&SetFigures::additions),
                             count(&SetFigures::removals)});
    }
  });
  const json& expected = golden_.at("modes").at("dense");
  EXPECT_NEAR(mean_loss(hidden), expected.at("loss").get<double>(), 5e-5);
  for (size_t kind = 0; kind + 2 < kinds.size(); ++kind)  // the last two are controls
    EXPECT_EQ(found[kind], expected.at("counts").at(kinds[kind].name).get<Counts>())
        << kinds[kind].name;
}

// Modes on the backend itself, plain loops for the demo's model alone.
class ModeGolden : public SelectionGolden {
 protected:
  void SetUp() override {
    SelectionGolden::SetUp();
    if (IsSkipped() || !GetParam().reference) return;
    model_.emplace(open_checkpoint(GetParam().folder), std::move(backend_), LoadOptions{});
  }
};

TEST_P(ModeGolden, PaperCopiesTheSameOutputs) { expect_mode(AttentionMode::kPaper); }
TEST_P(ModeGolden, CopyCountsTheSameMembers) { expect_mode(AttentionMode::kCopy); }
TEST_P(ModeGolden, KeysMergeTheSameClusters) { expect_mode(AttentionMode::kKeys); }

// The demo's model is the GPT-2 of the three.
std::vector<fs::path> folders() {
  const fs::path trained = test::shared_dir() / "models";
  return {test::share_dir() / "demo" / "gpt2-nano", trained / "gptj-nano", trained / "opt-nano"};
}

std::vector<Case> cases(size_t n_of_reference) {
  std::vector<Case> all;
  for (const fs::path& folder : folders()) {
    all.push_back({"cpu", folder, make_cpu_backend});
    if (n_of_reference == 0) continue;
    --n_of_reference;
    all.push_back({"reference", folder, make_reference_backend, true});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const fs::path& folder = info.param.folder;
  std::string name = folder.parent_path().filename().string() + "_" + folder.filename().string() +
                     "_" + info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Trained, SelectionGolden, testing::ValuesIn(cases(3)), name_of);
INSTANTIATE_TEST_SUITE_P(Trained, ModeGolden, testing::ValuesIn(cases(1)), name_of);

}  // namespace
}  // namespace sluice::impl::test
