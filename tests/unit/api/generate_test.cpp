// Text after a prompt: callbacks, ends, plans and their audit.

#include "sluice/generate.h"

#include <gtest/gtest.h>

#include "model/generate.h"
#include "unit/api/api_models.h"
#include "unit/api/plan_files.h"

namespace sluice::test {
namespace {

TEST(ApiGenerate, TheAnswerIsThatOfTheLibrarysOwnLoop) {
  const ModelFolder folder("gpt2");
  Model model = Model::load(folder.path());
  const auto checkpoint = impl::open_checkpoint(folder.path());
  const auto tokenizer = impl::open_tokenizer_of(*checkpoint);
  impl::Model own(checkpoint, impl::make_cpu_backend(impl::DType::kF32), {});
  for (const float temperature : {0.0f, 1.5f}) {
    impl::GenerateOptions wanted;
    wanted.n_predict = 30;
    wanted.sampler = {.temperature = temperature, .top_k = 20, .top_p = 0.9f, .seed = 3};
    wanted.ignore_eos = true;
    std::string text;
    const impl::GenerateResult expected = impl::generate(
        own, *tokenizer, "abc de", wanted, [&](std::string_view piece) { text += piece; });
    std::string shown;
    std::vector<int32_t> tokens;
    const GenerateResult found = generate(model, "abc de",
                                          {.max_tokens = 30,
                                           .temperature = temperature,
                                           .top_k = 20,
                                           .top_p = 0.9f,
                                           .seed = 3,
                                           .ignore_end = true,
                                           .on_token = [&](const GeneratedToken& token) {
                                             shown += token.text;
                                             if (token.id >= 0) tokens.push_back(token.id);
                                             return true;
                                           }});
    EXPECT_EQ(found.tokens, expected.tokens);
    EXPECT_EQ(found.tokens, tokens);
    EXPECT_EQ(found.text, text);
    EXPECT_EQ(found.text, shown);
    EXPECT_EQ(found.end, End::kLength);
    EXPECT_EQ(found.n_prompt, expected.n_prompt);
    EXPECT_FALSE(found.followed_plan);
    EXPECT_EQ(found.why_dense, "");
    EXPECT_FALSE(found.audit.has_value());
  }
}

TEST(ApiGenerate, ACallbackEndsIt) {
  Model model = Model::load(ModelFolder("gpt2").path());
  int n = 0;
  const GenerateResult stopped =
      generate(model, "abc",
               {.max_tokens = 20, .ignore_end = true, .on_token = [&](const GeneratedToken& token) {
                  return token.id < 0 || ++n < 3;
                }});
  EXPECT_EQ(stopped.tokens.size(), 3u);
  EXPECT_EQ(stopped.end, End::kCallback);
  const GenerateResult whole = generate(model, "abc", {.max_tokens = 3, .ignore_end = true});
  EXPECT_EQ(stopped.tokens, whole.tokens);
  EXPECT_EQ(stopped.text, whole.text);
  struct Thrown {};
  EXPECT_THROW(
      generate(model, "abc", {.on_token = [](const GeneratedToken&) -> bool { throw Thrown(); }}),
      Thrown);
}

TEST(ApiGenerate, SaysWhyItEnded) {
  Model model = Model::load(ModelFolder("gpt2").path());
  const GenerateResult whole = generate(model, "abc", {.max_tokens = 12, .ignore_end = true});
  ASSERT_GE(whole.text.size(), 6u);
  const std::string stop = whole.text.substr(4, 2);
  const GenerateResult stopped =
      generate(model, "abc", {.max_tokens = 12, .stop = {stop}, .ignore_end = true});
  EXPECT_EQ(stopped.end, End::kStopString);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
  const GenerateResult full = generate(model, "abc", {.max_tokens = 1000, .ignore_end = true});
  EXPECT_EQ(full.end, End::kContextFull);
}

TEST(ApiGenerate, FollowsAPlanWhereItPays) {
  const ModelFolder folder("gpt2");
  const TempDir dir;
  impl::write_plan_file(plan_file_for(folder.path(), impl::AttentionMode::kCopy, 32),
                        dir.path() / "plan.json");
  Model model = Model::load(folder.path());
  const Plan plan = Plan::load(dir.path() / "plan.json");
  const GenerateResult followed =
      generate(model, "abcdefgh", {.max_tokens = 5, .ignore_end = true, .plan = plan});
  EXPECT_TRUE(followed.followed_plan);
  EXPECT_EQ(followed.why_dense, "");
  const GenerateResult dense =
      generate(model, "abc", {.max_tokens = 5, .ignore_end = true, .plan = plan});
  EXPECT_FALSE(dense.followed_plan);
  EXPECT_EQ(dense.why_dense, plan.why_dense(3, 5));
  EXPECT_EQ(dense.tokens, generate(model, "abc", {.max_tokens = 5, .ignore_end = true}).tokens);
  const GenerateResult always =
      generate(model, "abc", {.max_tokens = 5, .ignore_end = true, .plan = plan, .always = true});
  EXPECT_TRUE(always.followed_plan);
}

TEST(ApiGenerate, AnAuditMeasuresThePlan) {
  Model model = Model::load(demo_model());
  const std::string text = read_bytes(demo_text());
  const GenerateOptions exact{.max_tokens = 9,
                              .ignore_end = true,
                              .plan = Plan::uniform({.mode = AttentionMode::kRefine, .delta = 0}),
                              .audit_every = 4};
  const GenerateResult found = generate(model, text.substr(0, 2500), exact);
  EXPECT_TRUE(found.followed_plan);
  ASSERT_TRUE(found.audit.has_value());
  EXPECT_EQ(found.audit->n_steps, 8);
  EXPECT_EQ(found.audit->n_compared, 8);
  EXPECT_EQ(found.audit->kl.n_samples, 2);
  EXPECT_LT(found.audit->kl.mean, 1e-6);  // all is read: round-off alone, of second order
  EXPECT_GT(found.audit->prompt_kl.n_samples, 50);
  EXPECT_LT(found.audit->prompt_kl.mean, 1e-6);
  EXPECT_EQ(found.audit->delta_factor, 1);

  GenerateOptions means = exact;
  means.plan = Plan::uniform(
      {.mode = AttentionMode::kRefine, .delta = std::numeric_limits<double>::infinity()});
  means.audit_mode = AuditMode::kStep;
  const GenerateResult rough = generate(model, text.substr(0, 2500), means);
  EXPECT_EQ(rough.audit->n_compared, 2);
  EXPECT_GT(rough.audit->kl.mean, 1e-4);
}

TEST(ApiGenerate, RefusesWhatItCannotDo) {
  Model model = Model::load(ModelFolder("gpt2").path());
  expect_error([&] { generate(model, std::string(80, 'a')); }, {"80", "40"});
  expect_error([&] { generate(model, "a", {.max_tokens = -1}); }, {"max_tokens"});
  expect_error([&] { generate(model, "a", {.temperature = -1}); }, {"temperature"});
  expect_error([&] { generate(model, "a", {.top_p = 0}); }, {"top"});
  expect_error([&] { generate(model, "a", {.stop = {""}}); }, {"stop"});
  expect_error([&] { generate(model, "a", {.audit_every = 4}); }, {"audit"});
  const Plan copy = Plan::uniform({.mode = AttentionMode::kCopy});
  for (const int64_t every : {-1, 1025})
    expect_error([&] { generate(model, "a", {.plan = copy, .audit_every = every}); }, {"audit"});
  expect_error(
      [&] {
        generate(model, "a", {.plan = copy, .audit_every = 1, .audit_mode = AuditMode::kStep});
      },
      {"audited"});
  Model encoder = Model::load(ModelFolder("bert").path());
  expect_error([&] { generate(encoder, "a"); }, {"encoder"});
}

}  // namespace
}  // namespace sluice::test
