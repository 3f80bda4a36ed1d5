// Models on a CUDA device: golden checkpoints whole and cut into pieces, and that no token knows of
// those behind it.

#include <array>

#include "backend/cuda/runtime/device.h"
#include "golden/golden_case.h"
#include "model/linear_work.h"
#include "parity/compare.h"
#include "sanitized.h"
#include "unit/model/family_models.h"
#include "unit/model/full_bases.h"

namespace sluice::impl::test {
namespace {

constexpr std::array kDTypes = {DType::kF32, DType::kBF16};

using Parameter = std::tuple<std::string, DType>;

class CudaModel : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(CudaModel, AgreesWithHuggingFace) {
  const auto& [name, dtype] = GetParam();
  expect_golden(name, dtype, [&type = dtype] { return make_cuda_backend(type); });
}

// A piece, a shorter one, and the rest token by token give what the whole prompt gives. Both sides
// are as far from the truth as a whole prompt may be.
TEST_P(CudaModel, PiecesGiveWhatTheWholeGives) {
  const auto& [name, dtype] = GetParam();
  const GoldenModel golden = golden_model(name);
  Model model(open_checkpoint(golden.path()), make_cuda_backend(dtype),
              {.context = golden.context, .progress = {}});
  if (!model.spec().causal) GTEST_SKIP() << "an encoder takes its text whole";
  KvCache cache = model.make_cache();
  const std::vector<float> whole = logits_of(model, golden.prompt, cache);
  cache.truncate(0);
  std::vector<float> pieces;
  const size_t n = golden.prompt.size(), first = n / 2, second = n * 3 / 4;
  std::vector<size_t> cuts = {0, first, second};
  for (size_t i = second + 1; i <= n; ++i) cuts.push_back(i);
  for (size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i] == cuts[i - 1]) continue;
    const std::vector<int32_t> piece(golden.prompt.begin() + static_cast<int64_t>(cuts[i - 1]),
                                     golden.prompt.begin() + static_cast<int64_t>(cuts[i]));
    const auto logits = logits_of(model, piece, cache);
    pieces.insert(pieces.end(), logits.begin(), logits.end());
  }
  const double one = dtype == DType::kF32 ? 2e-5 : bf16_tolerance(model.spec().n_layers);
  EXPECT_LE(relative_error(pieces, whole), 2 * one);
}

std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  const auto& [name, dtype] = info.param;
  return test_name_of(name, {"cuda", dtype});
}

INSTANTIATE_TEST_SUITE_P(All, CudaModel,
                         testing::ValuesIn(thinned(combinations(all_models(), kDTypes), 13)),
                         test_name);

using FamilyParameter = std::tuple<FamilyCase, DType>;

class CudaFamily : public testing::TestWithParam<FamilyParameter> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    if (is_encoder(family())) GTEST_SKIP() << "encoders see the future";
    const nlohmann::json config = family().config;
    model.emplace(synthetic_checkpoint(ConfigReader(config, family().name)),
                  make_cuda_backend(std::get<1>(GetParam())), LoadOptions{});
  }
  const FamilyCase& family() const { return std::get<0>(GetParam()); }

  std::optional<Model> model;
};

// As tests/unit/model/attention_test.cpp says of the CPU. The height of `copy`'s products depends
// on the future, and with it the order of their sums. So both futures consist of tokens that are
// not in the past, in the same order: where the first layer then keeps as many of one as of the
// other, the second one chooses from the same numbers. Where it does not, a token of the second
// layer that is within round-off of the threshold may be kept or merged, and those after it are not
// compared.
TEST_P(CudaFamily, TheFutureChangesNothing) {
  const bool f32 = std::get<1>(GetParam()) == DType::kF32;
  const auto width = static_cast<size_t>(model->spec().vocab);
  std::vector<int32_t> tokens = repeating_tokens(family().n_tokens), changed = tokens;
  const size_t kept = tokens.size() * 2 / 3;
  for (size_t i = kept; i < tokens.size(); ++i) {
    tokens[i] = 15 + static_cast<int32_t>(i * 5 % 9);
    changed[i] = 30 + static_cast<int32_t>(i * 5 % 9);
  }
  for (const AttentionMode mode :
       {AttentionMode::kDense, AttentionMode::kKeys, AttentionMode::kCopy}) {
    SCOPED_TRACE(std::string(mode_name(mode)));
    UniformAttention choice;
    choice.mode = mode;
    choice.tau = family().tau;
    choice.window = choice.block = 16;
    const bool dense = mode == AttentionMode::kDense;
    const AttentionPlan plan = dense ? AttentionPlan{} : uniform_plan(choice, model->plan_shape());
    const auto run = [&](const std::vector<int32_t>& text, std::vector<TokenSet>& sets) {
      KvCache cache = model->make_cache(1, 0, plan);
      auto logits = logits_of(*model, text, cache);
      for (int64_t layer = 0; layer < model->spec().n_layers && !dense; ++layer)
        sets.push_back(cache.selector(layer)->sets()[0]);
      return logits;
    };
    std::vector<TokenSet> sets, other_sets;
    auto first = run(tokens, sets), second = run(changed, other_sets);
    EXPECT_NE(first, second);
    size_t n_same = kept;  // tokens before the first that was decided otherwise
    for (size_t layer = 0; layer < sets.size(); ++layer) {
      size_t t = 0;
      while (t < kept && sets[layer].status[t] == other_sets[layer].status[t] &&
             sets[layer].owner[t] == other_sets[layer].owner[t])
        ++t;
      if (mode != AttentionMode::kCopy || layer == 0 ||
          sets[0].n_clusters == other_sets[0].n_clusters) {
        EXPECT_EQ(t, kept) << "layer " << layer;
      }
      n_same = std::min(n_same, t);
    }
    EXPECT_GT(n_same, kept / 2);
    first.resize(n_same * width);
    second.resize(n_same * width);
    if (mode != AttentionMode::kCopy)
      EXPECT_SAME_BITS(second, first);
    else
      EXPECT_CLOSE(second, first, (f32 ? 5e-6 : 2 * 0x1p-7) * range_of(first));
  }
}

// Steps of one token are recorded where attention can be; at every position they give what the
// operations themselves give, which an observer makes sure of, and another cache between them
// changes nothing.
TEST_P(CudaFamily, RecordedStepsGiveWhatTheyRecord) {
  const bool f32 = std::get<1>(GetParam()) == DType::kF32;
  const std::vector<int32_t> tokens = repeating_tokens(36);
  const auto begin = tokens.begin();
  const auto run = [&](bool observed) {
    model->observe(observed ? AttentionObserver([](const AttentionSeen&) {}) : AttentionObserver());
    KvCache cache = model->make_cache(), other = model->make_cache();
    std::vector<float> out = logits_of(*model, {begin, begin + 3}, cache);
    for (int64_t i = 3; i < 36; ++i) {
      if (i == 12) logits_of(*model, {begin, begin + 30}, other);
      if (i == 20) logits_of(*model, {begin, begin + 1}, other);
      const auto logits = logits_of(*model, {begin + i, begin + i + 1}, cache);
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  };
  const auto expected = run(true);
  EXPECT_FALSE(model->replays());
  const auto got = run(false);
  EXPECT_EQ(model->replays(), !f32);
  EXPECT_CLOSE(got, expected, (f32 ? 5e-6 : 2 * 0x1p-7) * range_of(expected));
}

// The same of a ragged batch, which one sequence leaves and another joins. Caches that wait for
// times are not recorded.
TEST_P(CudaFamily, RecordedRaggedStepsGiveWhatTheyRecord) {
  if (!model->spec().causal) GTEST_SKIP() << "an encoder takes no steps";
  const bool f32 = std::get<1>(GetParam()) == DType::kF32;
  const std::vector<int32_t> tokens = repeating_tokens(64);
  constexpr std::array<int64_t, 5> kLengths = {3, 17, 1, 30, 9};
  const int64_t vocab = model->spec().vocab;
  const auto run = [&](bool recorded) {
    std::vector<KvCache> caches;
    for (const int64_t length : kLengths) {
      caches.push_back(model->make_cache(1, length + 30));
      caches.back().wait_to_time(!recorded);
      model->forward({tokens.data(), static_cast<size_t>(length)}, caches.back());
    }
    std::vector<float> out;
    for (int64_t step = 0; step < 24; ++step) {
      std::vector<SequenceTokens> sequences;
      for (size_t i = 0; i < caches.size(); ++i)
        if ((step < 8 || i != 1) && (step >= 16 || i != 4))
          sequences.push_back({{&tokens[static_cast<size_t>(step) + 5 * i], 1}, &caches[i]});
      std::vector<float> logits(sequences.size() * static_cast<size_t>(vocab));
      model->logits(model->forward_ragged(sequences),
                    Tensor(logits.data(), DType::kF32, {std::ssize(sequences), vocab}));
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  };
  const auto expected = run(false);
  EXPECT_FALSE(model->replays());
  const auto got = run(true);
  EXPECT_EQ(model->replays(), !f32);
  EXPECT_CLOSE(got, expected, (f32 ? 5e-6 : 2 * 0x1p-7) * range_of(expected));
}

// The same of exact steps on the cache of a plan, as an audit takes them: each leaves the cache as
// it was, also across the border of a segment.
TEST_P(CudaFamily, RecordedExactStepsGiveWhatTheyRecord) {
  if (!model->spec().causal) GTEST_SKIP() << "an encoder takes no steps";
  const bool f32 = std::get<1>(GetParam()) == DType::kF32;
  UniformAttention choice;
  choice.mode = AttentionMode::kRefine;
  choice.window = 0;
  choice.delta = 0.05;
  choice.refine.segment = 32;
  AttentionPlan plan = uniform_plan(choice, model->plan_shape());
  plan.audited = true;
  const std::vector<int32_t> tokens = repeating_tokens(60);
  const int64_t vocab = model->spec().vocab;
  const auto run = [&](bool observed) {
    model->observe(observed ? AttentionObserver([](const AttentionSeen&) {}) : AttentionObserver());
    KvCache cache = model->make_cache(1, 60, plan);
    std::vector<float> out = logits_of(*model, {tokens.begin(), tokens.begin() + 3}, cache);
    for (size_t i = 3; i < tokens.size(); ++i) {
      const std::span<const int32_t> token(&tokens[i], 1);
      std::vector<float> exact(static_cast<size_t>(vocab));
      model->logits(model->forward_exact(token, cache),
                    Tensor(exact.data(), DType::kF32, {1, vocab}));
      out.insert(out.end(), exact.begin(), exact.end());
      const auto logits = logits_of(*model, {tokens[i]}, cache);
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  };
  const auto expected = run(true);
  const auto got = run(false);
  EXPECT_TRUE(model->replays());
  EXPECT_CLOSE(got, expected, (f32 ? 5e-6 : 2 * 0x1p-7) * range_of(expected));
}

// A basis of full rank with an open gate is the dense layer, and so is a graded one that leaves out
// zeros alone: for a prompt, which the host decides, and token by token, which the device does. The
// bounds are those of tests/unit/model/linear_test.cpp.
TEST_P(CudaFamily, FullBasesAndLosslessGradesEqualDense) {
  const bool f32 = std::get<1>(GetParam()) == DType::kF32;
  const int64_t n_layers = model->spec().n_layers;
  const double epsilon = f32 ? 1e-5 : 0.02;
  const Bases bases = full_bases(model->spec());
  const auto plan_of = [&](LinearKind kind, double its_epsilon) {
    LinearPlan plan;
    plan.layers.resize(static_cast<size_t>(n_layers));
    for (LayerLinearPlan& layer : plan.layers)
      for (const BasisInput input : kLinearInputs)
        layer.of(input) = {.kind = kind,
                           .rank = model->spec().row_widths().of(input),
                           .epsilon = its_epsilon,
                           .adaptive = 0};
    return plan;
  };
  const LinearPlan gsi = plan_of(LinearKind::kGsi, epsilon),
                   graded = plan_of(LinearKind::kGraded, 0);
  model->prepare_linear(gsi, &bases);
  model->prepare_linear(graded, nullptr);
  const std::vector<int32_t> tokens = repeating_tokens(30);
  const auto run = [&](const LinearPlan& plan, LinearWork* work) {
    KvCache cache = model->make_cache(1, 0, {}, plan);
    const auto begin = tokens.begin();
    std::vector<float> out = logits_of(*model, {begin, begin + 16}, cache);
    for (int64_t i = 16; i < 30; ++i) {
      const auto logits = logits_of(*model, {begin + i, begin + i + 1}, cache);
      out.insert(out.end(), logits.begin(), logits.end());
    }
    if (work != nullptr) work->add(cache, model->spec());
    for (int64_t layer = 0; layer < n_layers && !plan.all_dense(); ++layer)
      for (const BasisInput input : kLinearInputs)
        EXPECT_EQ(cache.gate(layer, input)->counts().n_tokens, std::ssize(tokens));
    return out;
  };
  const auto dense = run({}, nullptr);
  LinearWork work;
  EXPECT_CLOSE(
      run(gsi, &work), dense,
      (f32 ? 2 * 5e-6 + epsilon : 3 * 0x1p-9 * std::sqrt(22 * static_cast<double>(n_layers) + 2)) *
          range_of(dense));
  EXPECT_EQ(work.fast_path_fraction(), 1.0);
  EXPECT_EQ(model->replays(), !f32);
  EXPECT_CLOSE(run(graded, nullptr), dense, (f32 ? 5e-6 : 2 * 0x1p-7) * range_of(dense));
  EXPECT_EQ(model->replays(), !f32);
}

// Steps through gates are recorded too: with rows that pass and rows that do not, a gate that
// closes meanwhile, more rows than decisions are kept of, tokens between that the host decides on,
// and the same cache from the beginning. An observer makes sure of steps that are not recorded.
TEST_P(CudaFamily, RecordedGatesDecideAsOthers) {
  const ModelSpec& spec = model->spec();
  if (kFewCases) GTEST_SKIP() << "as many steps as there is room for decisions, many times";
  if (std::get<1>(GetParam()) == DType::kF32) GTEST_SKIP() << "the host decides in f32";
  if (spec.n_heads == spec.n_kv_heads && spec.head_dim > 64)
    GTEST_SKIP() << "recorded attention adds up in another order";
  constexpr int64_t kBatch = 8, kSteps = RowGate::kRoom / kBatch + 6, kPositions = 90;
  LinearPlan plan;
  plan.layers.resize(static_cast<size_t>(spec.n_layers));
  // Half of a random row is 0.71 of it.
  constexpr std::array kEpsilons = {0.7, 1e-4, 1.0, 0.7};
  for (LayerLinearPlan& layer : plan.layers)
    for (const BasisInput input : kLinearInputs)
      layer.of(input) = {.kind = LinearKind::kGsi,
                         .rank = spec.row_widths().of(input) / 2,
                         .epsilon = kEpsilons[static_cast<size_t>(input)],
                         .adaptive = 0};
  const Bases bases = full_bases(spec);
  model->prepare_linear(plan, &bases);
  struct Answer {
    std::vector<float> logits;
    std::vector<int64_t> counts;
  };
  const auto run = [&](bool observed) {
    model->observe(observed ? AttentionObserver([](const AttentionSeen&) {}) : AttentionObserver());
    KvCache cache = model->make_cache(kBatch, kPositions, {}, plan);
    Answer answer;
    uint32_t seed = 0;
    const auto pass = [&](int64_t n_tokens) {
      const auto logits = logits_of(*model, repeating_tokens(kBatch * n_tokens, ++seed), cache);
      answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
    };
    for (int sequence = 0; sequence < 2; ++sequence) {
      cache.truncate(0);
      pass(5);
      for (int64_t i = 0; i < kSteps; ++i) pass(1);
      pass(3);
      for (int64_t i = 0; i < 10; ++i) pass(1);
      for (int64_t layer = 0; layer < spec.n_layers; ++layer)
        for (const BasisInput input : kLinearInputs) {
          const LinearCounts& counts = cache.gate(layer, input)->counts();
          EXPECT_EQ(counts.n_tokens, kBatch * cache.length());
          if (input == BasisInput::kAttentionOutput) {
            EXPECT_GT(counts.n_bypassed, 0);
          }
          if (input == BasisInput::kMlpInput) {
            EXPECT_EQ(counts.n_fast, counts.n_tokens);
          }
          answer.counts.insert(answer.counts.end(), {counts.n_fast, counts.n_bypassed});
        }
    }
    return answer;
  };
  const Answer expected = run(true);
  EXPECT_FALSE(model->replays());
  const Answer got = run(false);
  EXPECT_TRUE(model->replays());
  EXPECT_EQ(got.counts, expected.counts);
  EXPECT_SAME_BITS(got.logits, expected.logits);
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaFamily, testing::ValuesIn(thinned(combinations(family_cases(), kDTypes), 3)),
    [](const auto& test) {
      return test_name_of(std::get<0>(test.param).name, {"cuda", std::get<1>(test.param)});
    });

}  // namespace
}  // namespace sluice::impl::test
