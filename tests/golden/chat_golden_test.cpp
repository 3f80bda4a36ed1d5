// Conversations in every chat format, compared with the text and the ids of transformers'
// apply_chat_template (tools/golden/chat.py).

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/chat/chat.h"
#include "paths.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const json& cases() {
  static const json all = json::parse(test::read_bytes(test::golden_dir() / "chat" / "cases.json"));
  return all;
}

// A golden tokenizer with the tokens of the format added.
std::unique_ptr<Tokenizer> open_with_added(const json& golden) {
  const fs::path from = test::golden_dir() / "tokenizers" / golden.at("tokenizer");
  json file = json::parse(test::read_bytes(from / "tokenizer.json"));
  for (const auto& [token, id] : golden.at("added").items())
    file["added_tokens"].push_back({{"id", id}, {"content", token}, {"special", true}});
  const test::TempDir folder;
  folder.write("tokenizer.json", file.dump());
  folder.write("tokenizer_config.json", test::read_bytes(from / "tokenizer_config.json"));
  return open_tokenizer(folder.path());
}

std::vector<ChatMessage> messages_of(const json& list) {
  std::vector<ChatMessage> messages;
  for (const json& each : list) {
    const std::string role = each.at("role");
    messages.push_back({.role = role == "system" ? ChatRole::kSystem
                                : role == "user" ? ChatRole::kUser
                                                 : ChatRole::kAssistant,
                        .text = each.at("content")});
  }
  return messages;
}

class ChatGolden : public testing::TestWithParam<size_t> {
 protected:
  const json& golden() const { return cases().at(GetParam()); }
};

TEST_P(ChatGolden, TextAndIdsAreThoseOfTransformers) {
  const auto tokenizer = open_with_added(golden());
  const auto style =
      recognise_chat(golden().at("template").get<std::string>(), chat_tokens(*tokenizer));
  ASSERT_TRUE(style.has_value());
  EXPECT_EQ(chat_format_name(style->format), golden().at("format").get<std::string>());
  for (const json& each : golden().at("conversations")) {
    const auto messages = messages_of(each.at("messages"));
    EXPECT_EQ(joined(render_chat(*style, messages)), each.at("text").get<std::string>());
    auto expected = each.at("ids").get<std::vector<int32_t>>();
    // Where the template leaves the first token out and the tokenizer puts it before every text,
    // transformers' answer depends on who encodes. Ours has it once.
    const auto of_nothing = tokenizer->encode("", true);
    if (!of_nothing.empty() && expected.front() != of_nothing.front())
      expected.insert(expected.begin(), of_nothing.front());
    EXPECT_EQ(encode_chat(*tokenizer, *style, messages), expected) << each.at("text");
  }
}

// A conversation that goes on is the whole one: what is in a cache need not be read again.
TEST_P(ChatGolden, ANextMessageContinuesTheText) {
  const auto tokenizer = open_with_added(golden());
  const auto style =
      *recognise_chat(golden().at("template").get<std::string>(), chat_tokens(*tokenizer));
  for (const json& each : golden().at("conversations")) {
    const auto messages = messages_of(each.at("messages"));
    if (messages.size() < 3) continue;
    const auto before = std::span(messages).first(messages.size() - 2);
    std::string text = joined(render_chat(style, before));
    text += style.ask.empty() ? style.answer.open + "Paris." : "Paris.";
    text += joined(render_next(style, messages.back().text));
    EXPECT_EQ(text, each.at("text").get<std::string>());
  }
}

std::string case_name(const testing::TestParamInfo<size_t>& info) {
  std::string name = cases().at(info.param).at("name");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, ChatGolden, testing::Range(size_t{0}, cases().size()), case_name);

}  // namespace
}  // namespace sluice::impl
