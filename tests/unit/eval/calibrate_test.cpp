// Calibration of whole models: what is observed, and how memory and text are cut.

#include "eval/calibrate.h"

#include <gtest/gtest.h>

#include "subspace/inherit.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/family_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

class Calibrate : public testing::TestWithParam<FamilyCase> {
 protected:
  Calibrate() {
    options.inputs = linear_inputs(model.spec());
    options.ranks = {3, 8};
    options.n_windows = 2;
  }
  Calibration run(size_t n_letters) {
    std::string content;
    for (size_t i = 0; i < n_letters; ++i) content += static_cast<char>('A' + i * i % 17);
    TextStream text(dir.write("text", content), tokenizer, "|");
    return calibrate(model, text, options, [&](double done) { progress = done; });
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 60, .vocab = 33, .bos = {}, .eos = {}}};
  Model model = load(GetParam(), {"cpu", DType::kF32});
  CalibrateOptions options;
  double progress = 0;
};

TEST_P(Calibrate, EveryLinearInputHasABasisOfItsWidth) {
  const Calibration made = run(300);
  const ModelSpec& spec = model.spec();
  EXPECT_EQ(progress, 1);
  ASSERT_EQ(made.bases.list.size(), options.inputs.size() * static_cast<size_t>(spec.n_layers));
  EXPECT_EQ(options.inputs.size(), spec.block == BlockKind::kParallel ? 3u : 4u);
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    for (const BasisInput input : options.inputs) {
      const Basis* basis = made.bases.find(layer, input);
      ASSERT_NE(basis, nullptr);
      EXPECT_EQ(basis->d, spec.row_widths().of(input));
      EXPECT_EQ(basis->rank, 8);
      EXPECT_GT(basis->energy(3), 0);
      EXPECT_LT(basis->energy(3), basis->energy());
      EXPECT_LE(basis->energy(), 1 + 1e-9);
    }
}

// The energy that a basis claims is the energy of the very rows that linear layers read.
TEST_P(Calibrate, EnergyIsThatOfTheRowsSeen) {
  options.n_windows = 1;
  options.inherit = Inheritance::kNever;
  const Calibration made = run(static_cast<size_t>(GetParam().n_tokens));
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < made.bases.n_tokens; ++i)
    tokens.push_back(static_cast<int32_t>('A' + i * i % 17 - 60));
  int n_seen = 0;
  model.observe_linear([&](const LinearSeen& seen) {
    ++n_seen;
    const Basis& basis = *made.bases.find(seen.layer, seen.input);
    double all = 0, inside = 0;
    for (int64_t t = 0; t < seen.rows.rows(); ++t) {
      const float* x = seen.rows.row<float>(t);
      for (int64_t j = 0; j < basis.d; ++j) all += double{x[j]} * x[j];
      for (int64_t i = 0; i < basis.rank; ++i) {
        double g = 0;
        for (int64_t j = 0; j < basis.d; ++j)
          g += double{x[j]} * basis.vectors[static_cast<size_t>(i * basis.d + j)];
        inside += g * g;
      }
    }
    // Vectors are rounded to float32.
    EXPECT_NEAR(inside / all, basis.energy(), 1e-6) << basis_input_name(seen.input);
  });
  KvCache cache = model.make_cache();
  model.forward(tokens, cache);
  model.observe_linear({});
  EXPECT_EQ(n_seen, static_cast<int>(made.bases.list.size()));
}

TEST_P(Calibrate, LittleMemoryTakesMorePassesAndGivesTheSame) {
  options.inputs.push_back(BasisInput::kSelectionNormed);
  options.sinks = model.spec().causal ? 4 : 0;
  options.outlier_ratio = 8;
  const Calibration once = run(200);
  options.memory = 1;  // one group at a time
  const Calibration often = run(200);
  EXPECT_EQ(once.n_passes, 1);
  EXPECT_EQ(often.n_passes, static_cast<int64_t>(once.bases.list.size()));
  for (const Basis& basis : once.bases.list)
    EXPECT_NEAR(often.bases.find(basis.layer, basis.input)->energy(), basis.energy(), 1e-9);
}

TEST_P(Calibrate, RunningBasesAreFreshAtThresholdZeroAndNeverUpdatedAtOne) {
  options.running = {0, 0.2, 1};
  options.inputs = {BasisInput::kAttentionInput, BasisInput::kAttentionOutput};
  options.inherit = Inheritance::kNever;
  const Calibration made = run(300);
  ASSERT_EQ(made.running.size(), 3u);
  for (const BasisInput input : options.inputs) {
    const RunningTotals fresh = running_totals(made.running[0], input);
    const RunningTotals some = running_totals(made.running[1], input);
    const RunningTotals never = running_totals(made.running[2], input);
    EXPECT_EQ(fresh.n_bases, model.spec().n_layers - 1);
    EXPECT_EQ(fresh.updates, 8 * fresh.n_bases);
    EXPECT_EQ(fresh.energy, fresh.fresh_energy);
    EXPECT_EQ(never.updates, 0);
    EXPECT_EQ(never.updates_saved(), never.n_bases > 0 ? 1 : 0);
    EXPECT_LE(some.updates, fresh.updates);
    EXPECT_LE(some.energy, fresh.energy + 1e-12);
  }
  // The fresh ones are those that calibrate keeps.
  for (size_t i = 0; i < made.groups.size(); ++i) {
    EXPECT_EQ(made.running[0].groups[i].layer, made.groups[i].layer);
    EXPECT_EQ(made.running[0].groups[i].input, made.groups[i].input);
    EXPECT_NEAR(made.running[0].groups[i].energy, made.groups[i].energies.back(), 1e-12);
  }
}

TEST_P(Calibrate, BadRanksAndShortTextsAreErrors) {
  expect_error([&] { run(7); }, {"the text has 7 tokens", "rank 8"});
  options.ranks = {model.spec().d_model + 1};
  expect_error([&] { run(300); }, {"--rank", "attention_input"});
  options.ranks = {0};
  expect_error([&] { run(300); }, {"--rank 0"});
}

// Refining k directions takes k d² a product; a fresh decomposition about d³ times a constant.
TEST(LargestPayingRank, IsASmallShareOfTheWidth) {
  EXPECT_EQ(largest_paying_rank(4), 0);
  for (const int64_t d : {192, 4096}) {
    const int64_t rank = largest_paying_rank(d);
    EXPECT_GT(affordable_iterations(d, rank), 0) << d;
    EXPECT_EQ(affordable_iterations(d, rank + 1), 0) << d;
    EXPECT_GT(rank, d / 32) << d;
    EXPECT_LT(rank, d / 4) << d;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Calibrate, testing::ValuesIn(family_cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace sluice::impl::test
