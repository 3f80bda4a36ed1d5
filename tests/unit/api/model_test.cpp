// Loading, what a model says of itself, and its tokenizer.

#include "sluice/model.h"

#include <gtest/gtest.h>

#include <system_error>
#include <thread>

#include "unit/api/api_models.h"

namespace sluice::test {
namespace {

TEST(ApiModel, SaysWhatItIs) {
  const ModelFolder folder("llama");
  double done = 0;
  const Model model = Model::load(folder.path(), {.context = 48, .progress = [&](double share) {
                                                    EXPECT_GE(share, done);
                                                    done = share;
                                                  }});
  EXPECT_EQ(done, 1);
  const ModelInfo& info = model.info();
  EXPECT_EQ(info.family, "llama");
  EXPECT_EQ(info.n_layers, 2);
  EXPECT_EQ(info.d_model, 32);
  EXPECT_EQ(info.n_heads, 4);
  EXPECT_EQ(info.n_kv_heads, 4);
  EXPECT_EQ(info.head_dim, 8);
  EXPECT_EQ(info.vocab, 64);
  EXPECT_EQ(info.context, 48);
  EXPECT_EQ(info.max_context, 64);
  EXPECT_FALSE(info.is_encoder);
  EXPECT_TRUE(info.has_logits);
  EXPECT_GT(info.weight_bytes, 0);
  EXPECT_FALSE(info.device.empty());
  EXPECT_EQ(info.end_tokens, std::vector<int32_t>{2});
  EXPECT_TRUE(Model::load(ModelFolder("bert").path()).info().is_encoder);
  EXPECT_FALSE(Model::load(ModelFolder("bert-nohead").path()).info().has_logits);
}

TEST(ApiModel, WeightsMayBeBlocks) {
  const ModelFolder folder("gpt2");
  const auto bytes = [&](Weights weights) {
    return Model::load(folder.path(), {.weights = weights}).info().weight_bytes;
  };
  EXPECT_EQ(bytes(Weights::kF32), bytes(Weights::kAsStored));
  EXPECT_LT(bytes(Weights::kQ8_0), bytes(Weights::kF32) / 2);
  EXPECT_LT(bytes(Weights::kQ4_0), bytes(Weights::kQ5_0));
  expect_error([&] { bytes(Weights::kBF16); }, {"bf16", "f32"});
  expect_error([&] { bytes(static_cast<Weights>(77)); }, {"type of the weights"});
}

TEST(ApiModel, TextComesBackFromItsTokens) {
  const Model model = Model::load(demo_model());
  for (const std::string text : {"The sea was calm.", " two  spaces\n\nlines", "naïve – 東京 🜂"}) {
    const std::vector<int32_t> tokens = model.tokenize(text, /*add_special=*/false);
    EXPECT_FALSE(tokens.empty());
    EXPECT_EQ(model.detokenize(tokens), text);
  }
  EXPECT_TRUE(model.tokenize("", /*add_special=*/false).empty());
  const Model letters = Model::load(ModelFolder("gpt2").path());
  EXPECT_EQ(letters.detokenize(std::vector<int32_t>{63, 3}), "a");
  EXPECT_EQ(letters.detokenize(std::vector<int32_t>{63, 3}, /*with_special=*/true),
            "<|endoftext|>a");
}

TEST(ApiModel, RefusesWhatItCannotLoad) {
  const TempDir dir;
  expect_error([&] { Model::load(dir.path() / "none"); }, {"none", "no such file"});
  expect_error([&] { Model::load(dir.path()); }, {"config.json"});
  const ModelFolder folder("gpt2");
  expect_error([&] { Model::load(folder.path(), {.context = 65}); }, {"65"});
  expect_error([&] { Model::load(folder.path(), {.context = -1}); }, {"-1"});
  expect_error([&] { Model::load(folder.path(), {.device = static_cast<Device>(9)}); }, {"device"});
  expect_error([&] { Model::load(folder.path(), {.dtype = static_cast<DType>(9)}); },
               {"number format"});
  folder.edit_bytes("model.safetensors", [](std::string& bytes) { bytes.resize(100); });
  expect_error([&] { Model::load(folder.path()); }, {"model.safetensors"});
}

TEST(ApiModel, WhatACallbackThrowsPassesThrough) {
  const ModelFolder folder("gpt2");
  const auto interrupt = [](double) { throw std::system_error(EINTR, std::generic_category()); };
  EXPECT_THROW(Model::load(folder.path(), {.progress = interrupt}), std::system_error);
}

TEST(ApiModel, WithoutATokenizerTokenIdsAreLeft) {
  const ModelFolder folder("gpt2");
  folder.remove("tokenizer.json");
  Model model = Model::load(folder.path());
  expect_error([&] { model.tokenize("a"); }, {"tokenizer"});
  expect_error([&] { model.detokenize(std::vector<int32_t>{3}); }, {"tokenizer"});
  expect_error([&] { generate(model, "a"); }, {"tokenizer"});
  Sequence sequence(model);
  sequence.append(std::vector<int32_t>{3, 4});
  EXPECT_EQ(sequence.length(), 2);
}

TEST(ApiModel, RefusesTokensOutsideOfTheVocabulary) {
  const Model model = Model::load(ModelFolder("gpt2").path());
  expect_error([&] { model.detokenize(std::vector<int32_t>{64}); }, {"64"});
  expect_error([&] { model.detokenize(std::vector<int32_t>{-1}); }, {"-1"});
}

TEST(ApiModel, OneThatWasMovedFromIsRefused) {
  Model model = Model::load(ModelFolder("gpt2").path());
  const Model other = std::move(model);
  EXPECT_EQ(other.info().family, "gpt2");
  expect_error([&] { model.info(); }, {"moved"});              // NOLINT(bugprone-use-after-move)
  expect_error([&] { Sequence sequence(model); }, {"moved"});  // NOLINT(bugprone-use-after-move)
}

TEST(ApiModel, ModelsInSeveralThreadsDoNotMeet) {
  const auto answer = [] {
    const ModelFolder folder("llama");
    Model model = Model::load(folder.path());
    return generate(model, "abc", {.max_tokens = 40, .ignore_end = true}).tokens;
  };
  const std::vector<int32_t> alone = answer();
  std::vector<std::vector<int32_t>> answers(3);
  {
    std::vector<std::jthread> threads;
    for (std::vector<int32_t>& out : answers) threads.emplace_back([&] { out = answer(); });
  }
  for (const std::vector<int32_t>& tokens : answers) EXPECT_EQ(tokens, alone);
}

TEST(ApiModel, ThreadsAreThoseAskedFor) {
  set_threads(1);
  EXPECT_EQ(threads(), 1);
  set_threads(0);
  EXPECT_GE(threads(), 1);
  expect_error([] { set_threads(-1); }, {"-1"});
}

TEST(ApiVersion, IsThatOfTheHeaders) { EXPECT_STREQ(version(), SLUICE_VERSION); }

}  // namespace
}  // namespace sluice::test
