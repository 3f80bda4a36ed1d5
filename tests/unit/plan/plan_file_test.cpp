// plan.json: what is written comes back, for the model that it was made for.

#include "plan/plan_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "unit/plan/sample_plan.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

using nlohmann::json;

// ---- what is written comes back ----

TEST(PlanFile, ComesBackAsItWas) {
  EXPECT_EQ(parsed(plan_file_json(sample_plan())), sample_plan());
  EXPECT_EQ(parsed(plan_file_json(dense_plan())), dense_plan());
}

TEST(PlanFile, ComesBackFromDisk) {
  const TempDir folder;
  const auto path = folder.path() / "plan.json";
  write_plan_file(sample_plan(), path);
  EXPECT_EQ(read_plan_file(path), sample_plan());
}

TEST(PlanFile, UniformPlansComeBack) {
  const PlanShape shape = {.n_layers = 3, .n_kv_heads = 2, .causal = true, .context = 100};
  for (const AttentionMode mode :
       {AttentionMode::kDense, AttentionMode::kPaper, AttentionMode::kCopy, AttentionMode::kKeys})
    for (const double tau : {0.0, 0.1 + 0.2, 0.999}) {
      PlanFile file = dense_plan();
      file.model.n_layers = 3;
      file.model.n_kv_heads = 2;
      UniformAttention choice;
      choice.mode = mode;
      choice.tau = tau;
      choice.from_layer = 1;
      file.plan.attention = uniform_plan(choice, shape);
      EXPECT_EQ(parsed(plan_file_json(file)), file) << mode_name(mode) << " " << tau;
    }
}

TEST(PlanFile, RefinedHeadsComeBackWithTheirDeltas) {
  PlanFile file = dense_plan();
  file.model.n_kv_heads = 4;
  UniformAttention choice;
  choice.mode = AttentionMode::kRefine;
  file.plan.attention.layers[1] = layer_plan(
      choice, {.n_layers = 2, .n_kv_heads = 4, .causal = true, .windows = {}, .context = 100});
  std::vector<HeadPlan>& heads = file.plan.attention.layers[1].heads;
  heads[0].delta = 0.003;
  heads[1].delta = std::numeric_limits<double>::infinity();  // means only
  heads[2] = {.kind = HeadKind::kWindow};
  heads[3] = {.kind = HeadKind::kDense};
  const json written = plan_file_json(file);
  EXPECT_TRUE(written.at("layers")[1].at("heads")[1].at("delta").is_null());
  EXPECT_EQ(parsed(written), file);
  json without = written;
  without["layers"][1]["heads"][1].erase("delta");
  EXPECT_THROW(parsed(without), Error);
}

TEST(PlanFile, ADenseLayerIsItsNumberAlone) {
  EXPECT_EQ(plan_file_json(dense_plan())["layers"], json({{{"layer", 0}}, {{"layer", 1}}}));
  PlanFile without_layers = dense_plan();
  without_layers.plan = {};
  EXPECT_EQ(plan_file_json(without_layers), plan_file_json(dense_plan()));
}

TEST(PlanFile, WhatIsLeftOutHasTheDefaultsOfItsMode) {
  json file = plan_file_json(dense_plan());
  for (const char* key : {"objective", "contract", "auto", "measured", "bases", "provenance"})
    file.erase(key);
  EXPECT_EQ(parsed(file), dense_plan());
  for (const AttentionMode mode :
       {AttentionMode::kPaper, AttentionMode::kCopy, AttentionMode::kKeys}) {
    file["layers"][1] = {
        {"layer", 1}, {"mode", mode_name(mode)}, {"heads", {{{"kind", "clusters"}, {"tau", 0.3}}}}};
    UniformAttention choice;
    choice.mode = mode;
    EXPECT_EQ(parsed(file).plan.attention.layers[1],
              layer_plan(choice, {.n_layers = 2, .n_kv_heads = 1, .causal = true, .context = 1}));
  }
}

TEST(PlanFile, BasesAreFoundFromThePlansFolder) {
  const PlanBases relative = {.path = "b/bases.safetensors", .text_sha256 = ""};
  EXPECT_EQ(bases_path(relative, "plans/plan.json"), "plans/b/bases.safetensors");
  EXPECT_EQ(bases_path(relative, "plan.json"), "b/bases.safetensors");
}

TEST(PlanFile, BasesStayInThePlansFolder) {
  for (const char* inside : {"", "b", "b/c", "./b", "b/../c", "..b", "b/.."})
    EXPECT_FALSE(leaves_folder(inside)) << inside;
  for (const char* outside : {"/b", "..", "../b", "b/../../c", "./../b"})
    EXPECT_TRUE(leaves_folder(outside)) << outside;
}

TEST(PlanFile, ObjectivesAreFoundByTheirNamesAlone) {
  for (const PlanObjective objective :
       {PlanObjective::kPrefill, PlanObjective::kDecode, PlanObjective::kMemory})
    EXPECT_EQ(objective_of(objective_name(objective)), objective);
  EXPECT_FALSE(objective_of("speed"));
}

// ---- against a model ----

Bases sample_bases() {
  Bases bases;
  bases.text_sha256 = std::string(64, 'b');
  Basis& basis = bases.list.emplace_back();
  basis.layer = 3;
  basis.d = 32;
  basis.rank = 16;
  return bases;
}
PlanTarget target_of(const Bases* bases) {
  return {.sha256 = std::string(64, 'a'),
          .shape = {.n_layers = 5, .n_kv_heads = 3, .causal = true, .context = 2048},
          .linear = {.n_layers = 5, .widths = {.d_model = 32, .attention = 32, .inner = 128}},
          .bases = bases};
}

TEST(CheckPlanFile, TakesTheModelItWasMadeFor) {
  const Bases bases = sample_bases();
  EXPECT_NO_THROW(check_plan_file(sample_plan(), "plan.json", target_of(&bases)));
}

TEST(CheckPlanFile, RefusesAnotherModelOrOtherBases) {
  const Bases bases = sample_bases();
  const auto refused = [&](const PlanTarget& target, const std::vector<std::string>& fragments) {
    expect_error([&] { check_plan_file(sample_plan(), "plan.json", target); }, fragments);
  };
  PlanTarget target = target_of(&bases);
  target.sha256 = std::string(64, 'd');
  refused(target, {"plan.json: made for another model (sha256 `aaaa", "this one's is `dddd"});
  target = target_of(&bases);
  target.shape.n_layers = 6;
  refused(target, {"plan.json: the plan has 5 layers, the model 6"});
  target = target_of(&bases);
  target.linear.widths.d_model = 19;
  refused(target, {"plan.json: layer 3, attention_input: 4 more directions"});
  refused(target_of(nullptr), {"plan.json: has joint layers, and there are no bases"});
  Bases other = sample_bases();
  other.text_sha256 = std::string(64, 'e');
  refused(target_of(&other), {"plan.json: made for other bases"});
  Bases small = sample_bases();
  small.list.front().rank = 15;
  refused(target_of(&small), {"plan.json: layer 3, attention_input: rank 16", "has 15"});
}

}  // namespace
}  // namespace sluice::impl::test
