// Several prompts together: each text is that of generate().

#include <gtest/gtest.h>

#include "sluice/generate.h"
#include "unit/api/api_models.h"
#include "unit/api/plan_files.h"

namespace sluice::test {
namespace {

const std::vector<std::string> kPrompts = {"abc de", "", "the sea was as dark as it", "f", "gh."};

TEST(ApiGenerateBatch, EveryTextIsThatOfGenerate) {
  Model model = Model::load(ModelFolder("gpt2").path());
  for (const float temperature : {0.0f, 1.5f}) {
    const GenerateOptions options{
        .max_tokens = 9, .temperature = temperature, .seed = 5, .ignore_end = true};
    for (const int64_t max_live : {1, 2, 16}) {
      std::vector<std::string> shown(kPrompts.size());
      std::vector<std::vector<int32_t>> tokens(kPrompts.size());
      const auto results = generate_batch(
          model, kPrompts, options,
          {.max_live = max_live, .on_token = [&](size_t index, const GeneratedToken& token) {
             shown[index] += token.text;
             if (token.id >= 0) tokens[index].push_back(token.id);
             return true;
           }});
      ASSERT_EQ(results.size(), kPrompts.size());
      for (size_t i = 0; i < kPrompts.size(); ++i) {
        const GenerateResult expected = generate(model, kPrompts[i], options);
        const GenerateResult& found = results[i].result;
        EXPECT_FALSE(results[i].error.has_value());
        EXPECT_EQ(found.tokens, expected.tokens) << kPrompts[i];
        EXPECT_EQ(found.text, expected.text);
        EXPECT_EQ(found.end, expected.end);
        EXPECT_EQ(found.n_prompt, expected.n_prompt);
        EXPECT_EQ(found.text, shown[i]);
        EXPECT_EQ(found.tokens, tokens[i]);
      }
    }
  }
}

TEST(ApiGenerateBatch, ACallbackEndsItsTextAlone) {
  Model model = Model::load(ModelFolder("gpt2").path());
  std::vector<int> n(kPrompts.size());
  const auto results = generate_batch(model, kPrompts, {.max_tokens = 9, .ignore_end = true},
                                      {.on_token = [&](size_t index, const GeneratedToken& token) {
                                        return token.id < 0 || ++n[index] < 2 || index != 3;
                                      }});
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ(results[i].result.tokens.size(), i == 3 ? 2u : 9u);
    EXPECT_EQ(results[i].result.end, i == 3 ? End::kCallback : End::kLength);
  }
  struct Thrown {};
  EXPECT_THROW(
      generate_batch(model, kPrompts, {},
                     {.on_token = [](size_t, const GeneratedToken&) -> bool { throw Thrown(); }}),
      Thrown);
}

TEST(ApiGenerateBatch, PromptsFollowThePlanWhereItPays) {
  const ModelFolder folder("gpt2");
  const TempDir dir;
  impl::write_plan_file(plan_file_for(folder.path(), impl::AttentionMode::kCopy, 32),
                        dir.path() / "plan.json");
  Model model = Model::load(folder.path());
  const GenerateOptions options{
      .max_tokens = 5, .ignore_end = true, .plan = Plan::load(dir.path() / "plan.json")};
  const std::vector<std::string> prompts = {"abcdefgh", "abc"};
  const auto results = generate_batch(model, prompts, options);
  EXPECT_TRUE(results[0].result.followed_plan);
  EXPECT_FALSE(results[1].result.followed_plan);
  EXPECT_NE(results[1].result.why_dense, "");
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(results[i].result.tokens, generate(model, prompts[i], options).tokens);
}

TEST(ApiGenerateBatch, RefusesAPromptAloneAndOptionsForAll) {
  Model model = Model::load(ModelFolder("gpt2").path());
  const std::vector<std::string> prompts = {"abc", std::string(60, 'a'), "d"};
  const auto results = generate_batch(model, prompts, {.max_tokens = 3, .ignore_end = true});
  EXPECT_FALSE(results[0].error || results[2].error);
  EXPECT_EQ(results[2].result.tokens.size(), 3u);
  ASSERT_TRUE(results[1].error.has_value());
  EXPECT_NE(std::string(results[1].error->what()).find("60 tokens"), std::string::npos);
  EXPECT_TRUE(generate_batch(model, {}).empty());
  const auto refused = [&](const GenerateOptions& options, const BatchOptions& batch,
                           const std::vector<std::string>& fragments) {
    expect_error([&] { generate_batch(model, prompts, options, batch); }, fragments);
  };
  refused({.max_tokens = -1}, {}, {"max_tokens"});
  refused({.temperature = -1}, {}, {"temperature"});
  refused({.stop = {""}}, {}, {"stop string"});
  refused({.audit_every = 4}, {}, {"audit"});
  refused({.on_token = [](const GeneratedToken&) { return true; }}, {}, {"on_token"});
  refused({}, {.max_live = 0}, {"max_live"});
  Model encoder = Model::load(ModelFolder("bert").path());
  expect_error([&] { generate_batch(encoder, prompts); }, {"encoder"});
}

}  // namespace
}  // namespace sluice::test
