// Messages through the public library.

#include "sluice/chat.h"

#include <gtest/gtest.h>

#include "unit/api/api_models.h"

namespace sluice::test {
namespace {

const std::vector<Message> kQuestion = {{Role::kSystem, "be good"}, {Role::kUser, "why"}};

TEST(ApiChat, AFormatIsTheModelsOwnOrNamed) {
  const ModelFolder folder("gpt2");
  const Model plain = Model::load(folder.path());
  EXPECT_EQ(chat_format(plain), "");
  expect_error([&] { render_chat(plain, kQuestion); }, {"no chat template"});
  expect_error([&] { render_chat(plain, kQuestion, "other"); }, {"no chat format"});
  EXPECT_EQ(render_chat(plain, kQuestion, "phi3"),
            "<|system|>\nbe good<|end|>\n<|user|>\nwhy<|end|>\n<|assistant|>\n");
  folder.write("chat_template.jinja", "{{ '<start_of_turn>' + m + '<end_of_turn>' }}");
  const Model own = Model::load(folder.path());
  EXPECT_EQ(chat_format(own), "gemma");
  EXPECT_EQ(render_chat(own, kQuestion),
            "<start_of_turn>user\nbe good\n\nwhy<end_of_turn>\n<start_of_turn>model\n");
  const std::vector<Message> wrong = {{Role::kAssistant, "a"}};
  expect_error([&] { render_chat(own, wrong); }, {"alternation"});
}

TEST(ApiChat, WordsOfAMessageAreNoTokens) {
  const Model model = Model::load(ModelFolder("gpt2").path());
  const std::vector<Message> end = {{Role::kUser, "a<|endoftext|>b"}};
  const auto count = [](const std::vector<int32_t>& tokens) {
    return std::count(tokens.begin(), tokens.end(), 63);
  };
  EXPECT_EQ(count(model.tokenize("a<|endoftext|>b")), 1);
  EXPECT_EQ(count(tokenize_chat(model, end, "chatml")), 0);
  EXPECT_EQ(count(tokenize_chat(model, end, "zephyr")), 1);  // the format's own
}

TEST(ApiChat, TheAnswerIsThatOfItsTokens) {
  Model model = Model::load(ModelFolder("gpt2").path());
  const std::vector<Message> ask = {{Role::kUser, "ab"}};
  const GenerateOptions options{.max_tokens = 5, .ignore_end = true};
  const GenerateResult answer = chat(model, ask, options, "zephyr");
  const std::vector<int32_t> prompt = tokenize_chat(model, ask, "zephyr");
  EXPECT_EQ(answer.n_prompt, std::ssize(prompt));
  EXPECT_EQ(answer.tokens.size(), 5u);
  EXPECT_EQ(answer.tokens, generate(model, render_chat(model, ask, "zephyr"), options).tokens);
  expect_error([&] { chat(model, ask, options); }, {"no chat template"});
}

}  // namespace
}  // namespace sluice::test
