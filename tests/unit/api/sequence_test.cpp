// Sequences: the same logits as the library's own calls, however the tokens are cut.

#include "sluice/sequence.h"

#include <gtest/gtest.h>

#include <optional>

#include "model/model.h"
#include "sanitized.h"
#include "unit/api/api_models.h"

namespace sluice::test {
namespace {

const std::vector<int32_t> kTokens = {5, 12, 7, 7, 30, 2, 41, 9, 5, 12, 60, 3};

std::vector<float> copied(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(ApiSequence, LogitsAreThoseOfTheLibrarysOwnCalls) {
  Model model = Model::load(demo_model());
  const std::vector<int32_t> tokens = demo_tokens(model, 301);
  impl::Model own(impl::open_checkpoint(demo_model()), impl::make_cpu_backend(impl::DType::kF32),
                  {});
  for (const auto& [mode, own_mode] :
       {std::pair(AttentionMode::kDense, impl::AttentionMode::kDense),
        {AttentionMode::kRefine, impl::AttentionMode::kRefine},
        {AttentionMode::kKeys, impl::AttentionMode::kKeys},
        {AttentionMode::kCopy, impl::AttentionMode::kCopy}}) {
    Sequence sequence(model, Plan::uniform({.mode = mode}), 310);
    sequence.append(std::span(tokens).first(300));
    sequence.append(std::span(tokens).last(1));
    impl::UniformAttention choice;
    choice.mode = own_mode;
    impl::KvCache cache = own.make_cache(1, 310, impl::uniform_plan(choice, own.plan_shape()));
    own.forward(std::span(tokens).first(300), cache);
    std::vector<float> logits(static_cast<size_t>(own.spec().vocab));
    own.logits(own.forward(std::span(tokens).last(1), cache),
               impl::Tensor(logits.data(), impl::DType::kF32, {1, own.spec().vocab}));
    EXPECT_EQ(copied(sequence.logits()), logits) << impl::mode_name(own_mode);
    EXPECT_EQ(sequence.length(), 301);
    EXPECT_EQ(sequence.capacity(), 310);
  }
}

TEST(ApiSequence, PiecesAreTheWholeToRoundOff) {
  for (const char* name :
       {"gpt2", "gptj", "opt", "llama", "mistral", "qwen2", "qwen3", "gpt-neox"}) {
    Model model = Model::load(ModelFolder(name).path());
    Sequence whole(model);
    whole.append(kTokens);
    for (const size_t piece : {1, 5}) {
      Sequence pieces(model);
      for (size_t i = 0; i < kTokens.size(); i += piece)
        pieces.append(std::span(kTokens).subspan(i, std::min(piece, kTokens.size() - i)));
      EXPECT_EQ(pieces.length(), whole.length());
      expect_alike(pieces.logits(), whole.logits());
    }
  }
}

TEST(ApiSequence, LongPromptsGoThroughInPasses) {  // of 1,024 tokens
  if (impl::test::kSanitized)
    GTEST_SKIP() << "takes minutes under a sanitizer; shorter texts run there";
  Model model = Model::load(demo_model());
  const std::vector<int32_t> tokens = demo_tokens(model, 1100);
  Sequence whole(model), pieces(model);
  whole.append(tokens);
  pieces.append(std::span(tokens).first(1024));
  pieces.append(std::span(tokens).subspan(1024));
  EXPECT_EQ(copied(whole.logits()), copied(pieces.logits()));
}

TEST(ApiSequence, ScoresOfEveryTokenAreThoseAfterIt) {
  Model model = Model::load(ModelFolder("llama").path());
  Sequence all(model), steps(model);
  const std::vector<float> rows = all.append_scored(kTokens);
  ASSERT_EQ(rows.size(), kTokens.size() * 64);
  for (size_t i = 0; i < kTokens.size(); ++i) {
    steps.append(std::span(kTokens).subspan(i, 1));
    expect_alike(std::span(rows).subspan(i * 64, 64), steps.logits());
  }
  EXPECT_EQ(copied(all.logits()), std::vector<float>(rows.end() - 64, rows.end()));
}

TEST(ApiSequence, ForgetsWhatItsPlanCanForget) {
  Model model = Model::load(ModelFolder("llama").path());
  Sequence whole(model), cut(model);
  whole.append(kTokens);
  cut.append(std::vector<int32_t>{5, 12, 7, 50, 51});
  cut.truncate(3);
  EXPECT_EQ(cut.length(), 3);
  expect_error([&] { cut.logits(); }, {"no logits"});
  cut.append(std::span(kTokens).subspan(3));
  expect_alike(cut.logits(), whole.logits());
  cut.truncate(cut.length());
  expect_alike(cut.logits(), whole.logits());  // none forgotten
  expect_error([&] { cut.truncate(13); }, {"12", "13"});
  expect_error([&] { cut.truncate(-1); }, {"-1"});

  Sequence merged(model, Plan::uniform({.mode = AttentionMode::kCopy}));
  merged.append(kTokens);
  const std::vector<float> first = copied(merged.logits());
  expect_error([&] { merged.truncate(3); }, {"all tokens or none"});
  merged.clear();
  EXPECT_EQ(merged.length(), 0);
  merged.append(kTokens);
  EXPECT_EQ(copied(merged.logits()), first);
}

TEST(ApiSequence, RefusesWhatDoesNotFitAndStaysAsItIs) {
  Model model = Model::load(ModelFolder("gpt2").path());
  expect_error([&] { Sequence sequence(model, {}, 41); }, {"41", "40"});
  expect_error([&] { Sequence sequence(model, {}, -1); }, {"-1"});
  Sequence sequence(model, {}, 4);
  expect_error([&] { sequence.logits(); }, {"no logits"});
  sequence.append(std::span(kTokens).first(3));
  const std::vector<float> before = copied(sequence.logits());
  expect_error([&] { sequence.append(std::span(kTokens).first(2)); }, {"2", "3", "4"});
  expect_error([&] { sequence.append({}); }, {"no tokens"});
  expect_error([&] { sequence.append(std::vector<int32_t>{64}); }, {"64"});
  expect_error([&] { sequence.append_scored(std::vector<int32_t>{-1}); }, {"-1"});
  EXPECT_EQ(sequence.length(), 3);
  EXPECT_EQ(copied(sequence.logits()), before);
}

TEST(ApiSequence, EncodersSeeASequenceWhole) {
  Model model = Model::load(ModelFolder("bert").path());
  Sequence sequence(model);
  EXPECT_EQ(sequence.append_scored(kTokens).size(), kTokens.size() * 64);
  expect_error([&] { sequence.append(kTokens); }, {"whole"});
  sequence.clear();
  sequence.append(kTokens);
  Model headless = Model::load(ModelFolder("bert-nohead").path());
  expect_error([&] { Sequence other(headless); }, {"no output matrix"});
}

TEST(ApiSequence, OutlivesItsModel) {
  std::optional<Model> model = Model::load(ModelFolder("llama").path());
  Sequence kept(*model);
  Sequence whole(*model);
  whole.append(kTokens);
  kept.append(std::span(kTokens).first(5));
  Sequence moved = std::move(kept);
  model.reset();
  moved.append(std::span(kTokens).subspan(5));
  expect_alike(moved.logits(), whole.logits());
}

}  // namespace
}  // namespace sluice::test
