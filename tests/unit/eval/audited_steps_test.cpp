// Audited decode steps on a trained checkpoint: what they measure, that they change nothing, and
// that a contract in danger makes them read more. docs/algorithm.md, section 7.

#include "eval/audit/audited_steps.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "core/error.h"
#include "core/threads.h"
#include "io/tokenizer/tokenizer.h"
#include "paths.h"
#include "sanitized.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

namespace fs = std::filesystem;

// Code of the same few statements over and over, chosen by a seed.
std::string code_text(uint32_t seed, int n_lines) {
  constexpr const char* kNames[] = {"count", "total", "index", "value", "row", "width"};
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < n_lines; ++i) {
    const std::string a = kNames[random() % 6], b = kNames[random() % 6];
    const std::string number = std::to_string(random() % 1000);
    const std::string statements[] = {"def " + a + "_" + number + "(" + a + ", " + b + "):",
                                      "    " + a + " = " + b + " * " + number,
                                      "    if " + a + " > " + b + ":", "        return " + a};
    text += statements[random() % 4] + "\n";
  }
  return text;
}

class AuditedRun : public testing::Test {
 protected:
  static constexpr int64_t kPrompt = 128, kSteps = 128, kTokens = kPrompt + kSteps;
  static constexpr int64_t kLong = 1280;  // tokens of a longer text
  static constexpr AuditMode kModes[] = {AuditMode::kReplay, AuditMode::kStep};

  static void SetUpTestSuite() {
    const fs::path demo = test::share_dir() / "demo";
    const auto checkpoint = open_checkpoint(demo / "gpt2-nano");
    model =
        new Model(checkpoint, make_cpu_backend(DType::kF32), {.context = kLong, .progress = {}});
    const auto tokenizer = open_tokenizer_of(*checkpoint);
    tokens = new std::vector<int32_t>(tokenizer->encode(read_bytes(demo / "text.txt"), false));
    code = new std::vector<int32_t>(tokenizer->encode(code_text(1, 250), false));
    ASSERT_GT(std::ssize(*tokens), kTokens + 20 * 50);
    ASSERT_GT(std::ssize(*code), kLong);
    set_threads(1);  // steps of so small a model are slower on several
  }
  static void TearDownTestSuite() {
    delete std::exchange(model, nullptr);
    delete std::exchange(tokens, nullptr);
    delete std::exchange(code, nullptr);
    set_threads(0);
  }

  // Segments so short that a short text has clusters.
  static AttentionPlan plan_of(double delta) {
    UniformAttention choice;
    choice.mode = AttentionMode::kRefine;
    choice.window = 32;
    choice.delta = delta;
    choice.refine.segment = 32;
    AttentionPlan plan = uniform_plan(choice, model->plan_shape());
    plan.audited = true;
    return plan;
  }

  // The scores of every step after the prompt, (kSteps, vocab).
  using Step = std::function<void(std::span<const int32_t>, KvCache&, const Tensor&)>;
  static std::vector<float> run(const AttentionPlan& plan, const Step& step,
                                const std::vector<int32_t>& text = *tokens) {
    KvCache cache = model->make_cache(1, kTokens, plan);
    model->forward({text.data(), kPrompt}, cache);
    const int64_t vocab = model->spec().vocab;
    std::vector<float> all(static_cast<size_t>(kSteps * vocab));
    for (int64_t i = 0; i < kSteps; ++i)
      step({text.data(), static_cast<size_t>(kPrompt + i + 1)}, cache,
           Tensor(all.data() + i * vocab, DType::kF32, {1, vocab}));
    return all;
  }
  static std::vector<float> run(const AttentionPlan& plan, AuditedSteps& audit,
                                const std::vector<int32_t>& text = *tokens) {
    const auto step = [&](std::span<const int32_t> so_far, KvCache& cache, const Tensor& scores) {
      audit.step(so_far, cache, scores);
    };
    return run(plan, step, text);
  }
  static std::vector<float> plain_run(const AttentionPlan& plan) {
    return run(plan, [](std::span<const int32_t> so_far, KvCache& cache, const Tensor& scores) {
      model->logits(model->forward(so_far.last(1), cache), scores);
    });
  }

  static Model* model;
  static std::vector<int32_t>*tokens, *code;  // prose, and text of another kind
};
Model* AuditedRun::model = nullptr;
std::vector<int32_t>*AuditedRun::tokens = nullptr, *AuditedRun::code = nullptr;

TEST_F(AuditedRun, AnAuditChangesNoScore) {
  const AttentionPlan plan = plan_of(0.02);
  const auto plain = plain_run(plan);
  for (const AuditMode mode : kModes) {
    AuditedSteps audit(*model, {.mode = mode, .every = 3});
    EXPECT_EQ(run(plan, audit), plain) << audit_mode_name(mode);
  }
}

TEST_F(AuditedRun, DeltaZeroLosesNothing) {
  for (const AuditMode mode : kModes) {
    AuditedSteps audit(*model, {.mode = mode, .every = 16});
    run(plan_of(0), audit);
    EXPECT_EQ(audit.kl().n_samples, kSteps / 16);
    EXPECT_LT(audit.kl().high, 1e-7) << audit_mode_name(mode);  // round-off of f32
  }
}

// Twenty texts. Every token is compared, so a mean is that of two separate runs, and its interval
// contains it. The exact model reads passes of other lengths here and there: round-off.
TEST_F(AuditedRun, TheIntervalOfAReplayContainsTheKlOfSeparateRuns) {
  const AttentionPlan plan = plan_of(0.02);
  const int64_t vocab = model->spec().vocab;
  std::vector<float> dense(static_cast<size_t>(kTokens * vocab));
  const int64_t n_texts = kSanitized   ? 2
                          : kLongTests ? 20
                                       : 6;  // ten seconds each under a sanitizer
  for (int64_t begin = 0; begin < n_texts * 50; begin += 50) {
    const std::vector<int32_t> text(tokens->begin() + begin, tokens->begin() + begin + kTokens);
    AuditedSteps audit(*model, {.every = 16});
    const std::vector<float> refined = run(plan, audit, text);
    KvCache cache = model->make_cache(1, kTokens);
    model->logits(model->forward(text, cache), Tensor(dense.data(), DType::kF32, {kTokens, vocab}));
    RunningMean kl;
    BaseRow base;
    for (int64_t i = 0; i < kSteps; ++i) {
      const auto row = [&](const std::vector<float>& from, int64_t at) {
        return std::span(from).subspan(static_cast<size_t>(at * vocab), static_cast<size_t>(vocab));
      };
      base.set(row(dense, kPrompt + i));
      kl.add(base.against(row(refined, i), 0).kl);
    }
    ASSERT_GT(kl.mean(), 1e-4);
    EXPECT_EQ(audit.n_compared(), kSteps);
    EXPECT_NEAR(audit.kl().mean, kl.mean(), 1e-4 * kl.mean()) << begin;
    EXPECT_LE(audit.kl().low, kl.mean());
    EXPECT_GE(audit.kl().high, kl.mean());
  }
}

// One token in `every`, whatever the passes; with every one of them, the KL of the two whole runs.
TEST_F(AuditedRun, APromptIsAuditedToo) {
  if (kSanitized) GTEST_SKIP() << "takes minutes under a sanitizer; shorter texts run there";
  const std::span<const int32_t> prompt(tokens->data(), kMostPromptAudited);
  const auto audited = [&](double delta, int64_t every, size_t first_pass) {
    auto audit = std::make_unique<AuditedSteps>(*model, AuditOptions{.every = every, .seed = 3});
    KvCache cache = model->make_cache(1, std::ssize(prompt), plan_of(delta));
    audit->read_prompt(prompt, 0, model->forward(prompt.first(first_pass), cache));
    audit->read_prompt(prompt, static_cast<int64_t>(first_pass),
                       model->forward(prompt.subspan(first_pass), cache));
    EXPECT_EQ(audit->prompt_kl().n_samples, 0);
    audit->finish_prompt();
    EXPECT_EQ(audit->prompt_kl().n_samples, std::ssize(prompt) / every);
    return audit;
  };
  const AuditInterval all = audited(0.02, 1, 128)->prompt_kl();
  EXPECT_GT(all.mean, 1e-4);
  const AuditInterval some = audited(0.02, 16, 128)->prompt_kl();
  EXPECT_LE(some.low, all.mean);
  EXPECT_GE(some.high, all.mean);
  EXPECT_LT(audited(0, 16, 128)->prompt_kl().mean, 1e-7);  // round-off of f32
  // A pass that ends within a tile opens other clusters: the same tokens, nearly the same KL.
  EXPECT_NEAR(audited(0.02, 16, 141)->prompt_kl().mean, some.mean, 0.5 * some.mean);

  // A longer one has no more samples, and all of it has its share.
  const std::span<const int32_t> longer(tokens->data(), 1000);
  AuditedSteps audit(*model, {.every = 1});
  KvCache cache = model->make_cache(1, std::ssize(longer), plan_of(0.02));
  audit.read_prompt(longer, 0, model->forward(longer, cache));
  audit.finish_prompt();
  EXPECT_EQ(audit.prompt_kl().n_samples, kMostPromptAudited);

  KvCache dense = model->make_cache(1, std::ssize(prompt));
  KvCache refined = model->make_cache(1, std::ssize(prompt), plan_of(0.02));
  const int64_t vocab = model->spec().vocab;
  std::vector<float> exact(static_cast<size_t>(std::ssize(prompt) * vocab)), found = exact;
  const Shape shape = {std::ssize(prompt), vocab};
  model->logits(model->forward(prompt, dense), Tensor(exact.data(), DType::kF32, shape));
  model->logits(model->forward(prompt.first(128), refined),
                Tensor(found.data(), DType::kF32, {128, vocab}));
  model->logits(model->forward(prompt.subspan(128), refined),
                Tensor(found.data() + 128 * vocab, DType::kF32, {128, vocab}));
  RunningMean kl;
  BaseRow base;
  const auto n = static_cast<size_t>(vocab);
  for (size_t i = 0; i < prompt.size(); ++i) {
    base.set(std::span(exact).subspan(i * n, n));
    kl.add(base.against(std::span(found).subspan(i * n, n), 0).kl);
  }
  EXPECT_NEAR(all.mean, kl.mean(), 1e-4 * kl.mean());
}

// Each run draws its own steps; all steps together are what it estimates. How often its interval
// holds depends on how skewed the KLs are: docs/results/audit.md, and AuditInterval's own tests.
TEST_F(AuditedRun, SampledStepsEstimateTheMeanOfAllSteps) {
  if (kSanitized) GTEST_SKIP() << "takes minutes under a sanitizer; shorter texts run there";
  const AttentionPlan plan = plan_of(0.02);
  AuditedSteps all(*model, {.mode = AuditMode::kStep, .every = 1});
  run(plan, all);
  ASSERT_EQ(all.kl().n_samples, kSteps);
  RunningMean means;
  std::vector<double> distinct;
  const uint64_t n_seeds = kLongTests ? 20 : 6;
  for (uint64_t seed = 1; seed <= n_seeds; ++seed) {
    AuditedSteps audit(*model, {.mode = AuditMode::kStep, .every = 4, .seed = seed});
    run(plan, audit);
    const AuditInterval found = audit.kl();
    EXPECT_EQ(found.n_samples, kSteps / 4);
    EXPECT_LE(found.low, found.mean);
    EXPECT_GE(found.high, found.mean);
    means.add(found.mean);
    distinct.push_back(found.mean);
  }
  EXPECT_NEAR(means.mean(), all.kl().mean, 3 * means.standard_error());
  std::sort(distinct.begin(), distinct.end());
  EXPECT_GT(std::unique(distinct.begin(), distinct.end()) - distinct.begin(),
            static_cast<int64_t>(n_seeds * 3 / 4));  // seeds choose
}

TEST_F(AuditedRun, AContractInDangerTightensUntilItHolds) {
  for (const AuditMode mode : kModes) {
    std::vector<AuditRecord> received;
    AuditedSteps audit(*model, {.mode = mode, .every = 4, .max_kl = 1e-5},
                       [&](const AuditRecord& record) { received.push_back(record); });
    run(plan_of(0.2), audit);
    ASSERT_FALSE(received.empty()) << audit_mode_name(mode);
    double factor = 1;
    for (const AuditRecord& record : received) {
      factor = factor > 1.0 / 64 ? factor / 2 : 0;
      EXPECT_EQ(record.delta_factor, factor);
      EXPECT_GT(record.kl.high, 1e-5);
    }
    EXPECT_EQ(audit.delta_factor(), factor);
    EXPECT_EQ(audit.records().back().delta_factor, factor);
  }
}

// A contract that prose keeps is broken by code, and that is caught.
TEST_F(AuditedRun, TextOfAnotherKindIsCaught) {
  if (kSanitized) GTEST_SKIP() << "takes minutes under a sanitizer; shorter texts run there";
  constexpr int64_t kRead = 384;  // before it all keys are near
  UniformAttention choice;
  choice.mode = AttentionMode::kRefine;
  choice.delta = 0.02;
  AttentionPlan plan = uniform_plan(choice, model->plan_shape());
  plan.audited = true;
  std::vector<float> scores(static_cast<size_t>(model->spec().vocab));
  const auto audited = [&](const std::vector<int32_t>& text, std::optional<double> max_kl) {
    AuditedSteps audit(*model, {.every = 32, .max_kl = max_kl});
    KvCache cache = model->make_cache(1, kLong, plan);
    model->forward({text.data(), kRead}, cache);
    for (int64_t t = kRead; t < kLong; ++t)
      audit.step({text.data(), static_cast<size_t>(t + 1)}, cache,
                 Tensor(scores.data(), DType::kF32, {1, model->spec().vocab}));
    return audit.records();
  };
  // The least contract that prose is far from breaking at any time.
  double max_kl = 0;
  for (const AuditRecord& record : audited(*tokens, {}))
    max_kl = std::max(max_kl, 2.1 * record.kl.low);
  EXPECT_EQ(audited(*tokens, max_kl).back().delta_factor, 1);
  const auto records = audited(*code, max_kl);
  const auto first = std::find_if(records.begin(), records.end(),
                                  [](const AuditRecord& record) { return record.tightened; });
  ASSERT_NE(first, records.end());
  EXPECT_GT(first->kl.high, max_kl);
  EXPECT_LT(records.back().kl.mean, first->kl.mean);
}

// Window heads keep what they do not read.
TEST_F(AuditedRun, WindowHeadsAreAuditedAndGivenUp) {
  AttentionPlan plan = plan_of(0.02);
  for (LayerPlan& layer : plan.layers) layer.heads[1].kind = HeadKind::kWindow;
  KvCache cache = model->make_cache(1, kTokens, plan);
  cache.set_delta_factor(0);
  model->forward({tokens->data(), kPrompt}, cache);
  KvCache dense = model->make_cache(1, kTokens);
  model->forward({tokens->data(), kPrompt}, dense);
  const auto vocab = static_cast<size_t>(model->spec().vocab);
  std::vector<float> exact(vocab), read(vocab), base(vocab);
  const auto view = [&](std::vector<float>& x) {
    return Tensor(x.data(), DType::kF32, {1, model->spec().vocab});
  };
  const std::span<const int32_t> next(tokens->data() + kPrompt, 1);
  cache.set_delta_factor(1);
  model->logits(model->forward_exact(next, cache), view(exact));
  model->logits(model->forward_exact(next, cache), view(read));
  EXPECT_EQ(exact, read);  // the first one left the cache as it was
  model->logits(model->forward(next, dense), view(base));
  BaseRow row;
  row.set(base);
  EXPECT_LT(row.against(exact, 0).kl, 1e-7);
  model->logits(model->forward(next, cache), view(read));
  EXPECT_GT(row.against(read, 0).kl, 1e-5);
}

TEST_F(AuditedRun, StepsThatDropKeysAreReplayedOnly) {
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  const AttentionPlan plan = uniform_plan(choice, model->plan_shape());
  EXPECT_THROW(check_audit({.mode = AuditMode::kStep, .every = 1}, plan), Error);
  EXPECT_NO_THROW(check_audit({.mode = AuditMode::kReplay, .every = 1}, plan));
  AuditedSteps audit(*model, {.every = 64, .max_kl = 1e-9});
  run(plan, audit);
  EXPECT_GT(audit.kl().mean, 0);
  EXPECT_EQ(audit.delta_factor(), 1);  // it has none
}

}  // namespace
}  // namespace sluice::impl::test
