// A conversation in one cache against the same tokens read at once.

#include "model/conversation.h"

#include <gtest/gtest.h>

#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

// A format within the 64 bytes from '0' on that the golden model has for tokens.
ChatStyle style() {
  ChatStyle style;
  style.user = {.open = "U", .close = "_"};
  style.answer = {.open = "A", .close = "Z"};
  style.ask = "A";
  style.system = {.open = "S", .close = "_"};
  return style;
}

class ConversationTest : public testing::Test {
 protected:
  GenerateOptions options(int64_t n) const {
    GenerateOptions wanted;
    wanted.n_predict = n;
    wanted.ignore_eos = true;
    return wanted;
  }

  Model model = load(golden_model("models/gpt2"), {"cpu", DType::kF32});
  const ByteTokenizer tokenizer{{.first_byte = '0', .vocab = 64}};
};

TEST_F(ConversationTest, ARoundReadsItsOwnMessageAlone) {
  Conversation conversation(model, tokenizer, {.style = style(), .system = "hi"});
  std::string said;
  const auto emit = [&](std::string_view text) { said += text; };
  const GenerateResult first = conversation.answer("abc", options(3), emit);
  EXPECT_EQ(first.n_prompt, 4 + 1 + 3 + 1 + 1);  // Shi_ U abc _ A
  EXPECT_EQ(first.tokens.size(), 3u);
  const std::string begun = "Shi_Uabc_A" + said;
  said.clear();
  const GenerateResult second = conversation.answer("de", options(3), emit);
  // The last token of the answer, which nothing was read after, is not counted: it is read now.
  EXPECT_EQ(second.n_prompt, 1 + 1 + 1 + 2 + 1 + 1);  // its last, Z U de _ A
  std::string whole;
  generate(model, tokenizer, begun + "ZUde_A", options(3),
           [&](std::string_view text) { whole += text; });
  EXPECT_EQ(said, whole);
  ASSERT_EQ(conversation.messages().size(), 5u);
  EXPECT_EQ(conversation.messages()[4].text, said);
  conversation.reset();
  EXPECT_EQ(conversation.messages().size(), 1u);
  EXPECT_EQ(conversation.n_tokens(), 0);
  EXPECT_EQ(conversation.answer("abc", options(3), emit).tokens, first.tokens);
}

TEST_F(ConversationTest, AMessageWithoutRoomChangesNothing) {
  Conversation conversation(model, tokenizer, {.style = style()});
  const auto emit = [](std::string_view) {};
  conversation.answer("abc", options(2), emit);
  const int64_t before = conversation.n_tokens();
  const std::string large(static_cast<size_t>(model.context()), 'a');
  EXPECT_THROW(conversation.answer(large, options(2), emit), Error);
  EXPECT_EQ(conversation.n_tokens(), before);
  EXPECT_EQ(conversation.messages().size(), 2u);
  EXPECT_EQ(conversation.answer("d", options(2), emit).tokens.size(), 2u);
}

TEST_F(ConversationTest, AStoppedAnswerStaysInTheConversation) {
  Conversation conversation(model, tokenizer, {.style = style()});
  const auto emit = [](std::string_view) {};
  GenerateOptions stops = options(9);
  int n = 0;
  stops.go_on = [&](int32_t) { return ++n < 3; };
  const GenerateResult stopped = conversation.answer("abc", stops, emit);
  EXPECT_EQ(stopped.end, GenerateResult::End::kCallback);
  EXPECT_EQ(stopped.tokens.size(), 3u);
  EXPECT_EQ(conversation.messages()[1].text.size(), 3u);
  // Stopped while the message is read: the next round reads the rest.
  GenerateOptions cancelled = options(9);
  cancelled.cancelled = [] { return true; };
  EXPECT_TRUE(conversation.answer("de", cancelled, emit).tokens.empty());
  EXPECT_EQ(conversation.answer("f", options(2), emit).tokens.size(), 2u);
}

TEST_F(ConversationTest, ATokenOfTheFormatEndsAnAnswer) {
  // Whatever token comes first is made the one that ends answers.
  Conversation free(model, tokenizer, {.style = style()});
  const auto emit = [](std::string_view) {};
  const int32_t first = free.answer("abc", options(1), emit).tokens.front();
  ChatStyle ends = style();
  ends.end_tokens = {tokenizer.token_of(first)};
  Conversation ended(model, tokenizer, {.style = ends});
  GenerateOptions wanted = options(5);
  wanted.ignore_eos = false;
  const GenerateResult result = ended.answer("abc", wanted, emit);
  EXPECT_EQ(result.end, GenerateResult::End::kEos);
  EXPECT_TRUE(result.tokens.empty());
}

}  // namespace
}  // namespace sluice::impl::test
