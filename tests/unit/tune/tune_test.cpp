// From a contract to a plan on a tiny model: what it promises holds, and what cannot be is dense.

#include "tune/tune.h"

#include <gtest/gtest.h>

#include <cmath>

#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::test {
namespace {

class Tune : public testing::Test {
 protected:
  Tune() {
    GoldenModel golden = golden_model("models/llama");
    golden.context = 48;
    model = std::make_unique<Model>(load(golden, {"cpu", DType::kF32}));
    for (size_t i = 0; i < 2000; ++i) {
      content += static_cast<char>('A' + i * i % 23 % 11);
      if (i % 80 == 79) content += '|';
    }
    options.split = {.context = 32, .n_calibration = 3, .n_held_out = 5, .seed = 1};
    options.heads.windows = {8};
    options.heads.taus = {0.3, 0.6};
    options.objective = PlanObjective::kMemory;  // no clock decides
    options.bench_rounds = 1;
  }
  TuneResult run(const std::filesystem::path& kept = {}) {
    TextStream text(dir.write("text", content), tokenizer, "|");
    Measurements measurements(kept, {{"test", 1}});
    return tune(*model, text, options, measurements, [&](double done, const std::string&) {
      EXPECT_GE(done, 0);
      EXPECT_LE(done, 1);
      if (interrupt_after > 0 && --interrupt_after == 0) throw Error("interrupted", "");
    });
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
  std::unique_ptr<Model> model;
  std::string content;
  TuneOptions options;
  int interrupt_after = 0;
};

TEST_F(Tune, WhatIsPromisedHoldsOnHeldOutText) {
  for (const double max_kl : {1e-4, 1e-2, 1.0}) {
    options.contract.max_kl = max_kl;
    const TuneResult result = run();
    EXPECT_LE(result.held_out.kl.mean() + 2 * result.held_out.kl.standard_error(), max_kl);
    EXPECT_LE(result.cost, result.dense_cost);
    EXPECT_NO_THROW(check_plan(result.plan.attention, model->plan_shape()));
    // Measured again, it is what the result says.
    EXPECT_DOUBLE_EQ(loss_of(*model, result.plan, result.text.held_out).kl.mean(),
                     result.held_out.kl.mean());
    if (max_kl == 1.0) {
      EXPECT_FALSE(result.plan.attention.all_dense());
      EXPECT_EQ(result.dense_because, "");
      EXPECT_LT(result.cost, result.dense_cost);
    }
  }
}

TEST_F(Tune, AContractThatAllowsNothingIsDenseAndSaysWhy) {
  options.contract.max_kl = 0;
  const TuneResult result = run();
  EXPECT_TRUE(result.plan.attention.all_dense());
  EXPECT_NE(result.dense_because, "");
  EXPECT_EQ(result.held_out.kl.mean(), 0);
  EXPECT_FALSE(result.prefill_from || result.decode_from);
}

TEST_F(Tune, APerplexityRatioIsAContractToo) {
  options.contract.max_ppl_ratio = 1.02;
  const TuneResult result = run();
  EXPECT_LE(result.held_out.log_ratio.mean() + 2 * result.held_out.log_ratio.standard_error(),
            std::log(1.02));
}

TEST_F(Tune, AnInterruptedRunGoesOnAndFindsTheSame) {
  options.contract.max_kl = 0.05;
  const TuneResult whole = run();
  const auto kept = dir.path() / "kept";
  // In the second window.
  interrupt_after = static_cast<int>(model->spec().n_layers * model->spec().n_kv_heads *
                                     options.heads.n_choices()) +
                    3;
  EXPECT_THROW(run(kept), Error);
  interrupt_after = 0;
  const TuneResult resumed = run(kept);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.plan.attention, whole.plan.attention);
  EXPECT_EQ(resumed.predicted_kl, whole.predicted_kl);
  // Another contract has nothing to measure.
  options.contract.max_kl = 0.02;
  interrupt_after = 0;
  EXPECT_TRUE(run(kept).resumed);
}

TEST(Contract, IsUsedUpByTheWorseOfBoth) {
  Loss loss;
  loss.kl.add(0, 1, 100);
  loss.kl.add(1, 1, 100);
  loss.log_ratio.add(0, std::log(1.02) * 100, 100);
  loss.log_ratio.add(1, std::log(1.02) * 100, 100);
  EXPECT_NEAR((Contract{.max_kl = 0.02}.excess(loss)), 0.5, 1e-12);
  EXPECT_NEAR((Contract{.max_ppl_ratio = 1.02}.excess(loss)), 1, 1e-12);
  EXPECT_NEAR((Contract{.max_kl = 0.005, .max_ppl_ratio = 1.02}.excess(loss)), 2, 1e-12);
  EXPECT_TRUE(std::isinf(Contract{.max_kl = 0}.excess(loss)));
  EXPECT_TRUE(Contract{.max_kl = 0}.holds(Loss{}));
}

}  // namespace
}  // namespace sluice::test
