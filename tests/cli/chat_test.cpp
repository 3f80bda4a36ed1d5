// sluice chat in a pseudo-terminal and by a pipe, and prompts to instruct models.

#include <nlohmann/json.hpp>

#include "cli/model_folder.h"
#include "cli/run_program.h"
#include "cli/terminal.h"
#include "paths.h"

namespace sluice::impl {
namespace {

using namespace test;
namespace fs = std::filesystem;

// Its own short template of ChatML; the tokens of the format are not in the vocabulary.
constexpr const char* kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}";

// A model of random weights that answers with letters, up to the length asked for.
class Chat : public testing::Test {
 protected:
  Chat() {
    folder.set_config("max_position_embeddings", 512);
    folder.edit_json("tokenizer_config.json",
                     [](nlohmann::json& config) { config["chat_template"] = kTemplate; });
  }
  Args chat(const Args& more = {}) const {
    return joined({"chat", "-m", folder.path(), "--ignore-eos", "--temperature", "20"}, more);
  }

  const ModelFolder folder{"llama"};
  const TempDir out;
};

Args demo_chat(const Args& more) {
  const std::string model = (test::share_dir() / "demo" / "gpt2-nano").string();
  return joined({"chat", "-m", model, "--chat-format", "chatml", "--ignore-eos"}, more);
}

TEST_F(Chat, SeveralRoundsInATerminal) {
  Terminal terminal(demo_chat({"-n", "4"}));
  ASSERT_TRUE(terminal.wait_for("chat format chatml"));
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("The sea was calm.\n");
  ASSERT_TRUE(terminal.wait_for("4 answered at "));
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("And then?\n");
  ASSERT_TRUE(terminal.wait_for("4 answered at "));
  ASSERT_TRUE(terminal.wait_for("> "));
  const std::string file = (out.path() / "chat.json").string();
  terminal.type("/save " + file + "\n");
  ASSERT_TRUE(terminal.wait_for("written to "));
  const auto messages = nlohmann::json::parse(read_bytes(file)).at("messages");
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0].at("content"), "The sea was calm.");
  EXPECT_EQ(messages[1].at("role"), "assistant");
  EXPECT_EQ(messages[2].at("content"), "And then?");
  terminal.type("/help\n");
  ASSERT_TRUE(terminal.wait_for("/reset"));
  terminal.type("/rest\n");
  ASSERT_TRUE(terminal.wait_for("did you mean /reset?"));
  terminal.type("/reset\n");
  ASSERT_TRUE(terminal.wait_for("forgotten"));
  terminal.type("\x04");  // Ctrl-D
  EXPECT_EQ(terminal.wait_for_end(), 0) << terminal.shown();
}

TEST_F(Chat, CtrlCStopsTheAnswerAndNotTheProgram) {
  Terminal terminal(demo_chat({"-n", "100000"}));  // up to the end of the context
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("Tell a tale.\n");
  ASSERT_TRUE(terminal.wait_for("Tell a tale."));  // the terminal's own echo
  ASSERT_TRUE(terminal.wait_for("\n"));
  ASSERT_TRUE(terminal.wait_for(" "));  // the answer has begun
  terminal.type("\x03");
  ASSERT_TRUE(terminal.wait_for("stopped"));
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("\x03");  // nothing to stop
  ASSERT_TRUE(terminal.wait_for("/quit ends"));
  terminal.type("/quit\n");
  EXPECT_EQ(terminal.wait_for_end(), 0) << terminal.shown();
}

// What a pipe says, by a shell.
class Piped : public Chat {
 protected:
  RunResult run(const std::string& text, const Args& args) const {
    const std::string input = out.write("input", text).string();
    RunResult result;
    result.args = args;
    std::string line = "cat '" + input + "' | '" + program_path() + "'";
    for (const std::string& arg : args) line += " '" + arg + "'";
    const fs::path to = out.path() / "stdout", err = out.path() / "stderr",
                   code = out.path() / "code";
    // Its code goes past the pipe behind it.
    line = "{ " + line + " 2>'" + err.string() + "'; echo $? >'" + code.string() + "'; }";
    if (std::system((line + " | cat >'" + to.string() + "'").c_str()) != 0)
      throw std::runtime_error("no shell");
    result.code = std::stoi(read_bytes(code));
    result.out = read_bytes(to);
    result.err = read_bytes(err);
    return result;
  }
};

TEST_F(Piped, LinesAreMessages) {
  const RunResult result = run("hello\n\nmore", chat({"-n", "2", "-c", "240", "--system", "be"}));
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(count_of(result.err, "2 answered at "), 2u) << result;
  EXPECT_EQ(result.err.find("> "), std::string::npos) << result;
}

TEST_F(Piped, AFullContextIsSaid) {
  const RunResult result =
      run("hello\n" + std::string(300, 'a') + "\n", chat({"-n", "2", "-c", "200"}));
  EXPECT_EQ(result.code, 1) << result;
  EXPECT_NE(result.err.find("context of 200 tokens is full"), std::string::npos) << result;
  EXPECT_NE(result.err.find("/reset"), std::string::npos) << result;
  const RunResult filled = run("hello\n", chat({"-n", "500", "-c", "200"}));
  EXPECT_EQ(filled.code, 0) << filled;
  EXPECT_NE(filled.err.find("context of 200 tokens is full"), std::string::npos) << filled;
}

TEST_F(Piped, APlanIsAudited) {
  const RunResult result =
      run("hello\nmore\n", chat({"-n", "20", "-c", "240", "--attention", "refine"}));
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(count_of(result.err, "% of keys read; measured KL "), 2u) << result;
}

TEST_F(Piped, APromptIsRead) {
  const Args generate{"generate", "-m", folder.path(), "-n", "6", "--chat-format", "none"};
  const RunResult given = run("", joined(generate, {"-p", "hello"}));
  const RunResult piped = run("hello\n", generate);
  EXPECT_EQ(piped.code, 0) << piped;
  EXPECT_EQ(piped.out, given.out);
  EXPECT_EQ(run("hello", joined(generate, {"-f", "-"})).out, given.out);
  const RunResult bare = run("hello\n", joined(generate, {"--no-echo"}));
  EXPECT_EQ("hello" + bare.out, given.out) << bare;
  EXPECT_EQ(run("", generate).code, 2);
}

TEST_F(Piped, ResultsAloneGoToStandardOutput) {
  const Args generate{"generate", "-m", folder.path(), "-n", "6", "--json", "-"};
  const RunResult result = run("hello\n", generate);
  EXPECT_EQ(result.code, 0) << result;
  const auto results = nlohmann::json::parse(result.out);
  EXPECT_EQ(results.at("runs").at(0).at("prompt"), "hello");
  EXPECT_EQ(results.at("settings").at("chat_format"), "chatml");
  EXPECT_NE(result.err.find("tokens/s"), std::string::npos) << result;
  const RunResult eval =
      run(letter_text(400), {"eval", "-m", folder.path(), "-f", "-", "-c", "32", "--json", "-"});
  EXPECT_EQ(eval.code, 0) << eval;
  EXPECT_EQ(nlohmann::json::parse(eval.out).at("command"), "eval");
  const RunResult two = run("a", joined(generate, {"--html", "-"}));
  EXPECT_EQ(two.code, 2) << two;
}

TEST_F(Piped, Tokens) {
  const RunResult lines = run("ab", {"tokenize", "-m", folder.path()});
  EXPECT_EQ(lines.out, "      3  \"a\"\n      4  \"b\"\n") << lines;
  EXPECT_EQ(run("ab\n", {"tokenize", "-m", folder.path(), "--count"}).out, "2\n");
  const RunResult result = run("ab", {"tokenize", "-m", folder.path(), "--json", "-"});
  const auto tokens = nlohmann::json::parse(result.out);
  EXPECT_EQ(tokens.at("n_tokens"), 2);
  EXPECT_EQ(tokens.at("tokens")[1].at("piece"), "b");
}

TEST_F(Chat, APromptIsAMessageUnlessToldOtherwise) {
  const Args generate{"generate", "-m", folder.path(), "-p", "hello", "-n", "3", "--ignore-eos"};
  const RunResult message = run_ok(generate);
  EXPECT_NE(message.err.find("chat format chatml, the model's own"), std::string::npos) << message;
  EXPECT_EQ(message.out.find("hello"), std::string::npos) << message;
  const RunResult raw = run_ok(joined(generate, {"--chat-format", "none"}));
  EXPECT_NE(raw.err.find("prompt 5 tokens"), std::string::npos) << raw;
  EXPECT_TRUE(raw.out.starts_with("hello")) << raw;
  const RunResult other = run_ok(joined(generate, {"--chat-format", "gemma"}));
  EXPECT_NE(other.err.find("chat format gemma"), std::string::npos) << other;
}

TEST_F(Chat, UsageIsChecked) {
  const ModelFolder plain;
  const auto expect = [](const Args& args, int code, const std::string& said) {
    const RunResult result = run_program(args);
    EXPECT_EQ(result.code, code) << result;
    EXPECT_NE(result.err.find(said), std::string::npos) << result;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result;
  };
  expect({"chat", "-m", plain.path()}, 1, "has no chat template");
  expect({"generate", "-m", plain.path(), "-p", "a", "--system", "b"}, 2, "--system needs");
  expect({"generate", "-m", plain.path(), "-p", "a", "--chat-format", "x"}, 2, "--chat-format");
  expect({"genrate"}, 2, "did you mean generate?");
  expect({"generate", "--promt", "a"}, 2, "did you mean --prompt?");
  expect({"generate", "--zzzzzzzz"}, 2, "sluice generate --help lists them");
  expect({"help", "evall"}, 2, "did you mean eval?");
}

TEST_F(Chat, HelpIsThatOfTheCommand) {
  EXPECT_EQ(run_ok({"help", "chat"}).out, run_ok({"chat", "--help"}).out);
  EXPECT_EQ(run_ok({"help"}).out, run_ok({"--help"}).out);
  expect_all_in({"--predict N=512", "--context N=0"}, run_ok({"help", "chat"}));
}

TEST_F(Piped, AnInstructModelKnowsTheCapitalOfFrance) {
  const fs::path models = test::shared_dir() / "models";
  fs::path found;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(models, ignored))
    if (const std::string name = entry.path().filename().string();
        name.starts_with("SmolLM2-135M-Instruct") && name.ends_with(".gguf"))
      found = entry.path();
  if (found.empty()) GTEST_SKIP() << "no SmolLM2-135M-Instruct in " << models;
  const RunResult result =
      run("What is the capital of France?", {"generate", "-m", found.string(), "-n", "32"});
  EXPECT_NE(result.out.find("Paris"), std::string::npos) << result;
}

}  // namespace
}  // namespace sluice::impl
