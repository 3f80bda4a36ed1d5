// --batch: several prompts of a file in generate, several windows in eval.

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

class GenerateBatch : public testing::Test {
 protected:
  Args batch(const std::string& prompts, const Args& more = {}) const {
    return joined({"generate", "-m", folder_.path(), "-n", "12", "--quiet", "--ignore-eos", "-f",
                   folder_.write("prompts.jsonl", prompts)},
                  more);
  }
  std::string alone(const std::string& prompt) const {
    const std::string out = run_ok({"generate", "-m", folder_.path(), "-n", "12", "--quiet",
                                    "--ignore-eos", "-p", prompt})
                                .out;
    return out.substr(0, out.size() - 1);
  }
  const ModelFolder folder_;
};

TEST_F(GenerateBatch, EveryPromptGetsTheTextOfItsOwnRunInTheirOrder) {
  const std::vector<std::string> prompts = {"hello", "a", "the sea was dark and so was", "b."};
  std::string file;
  for (const std::string& prompt : prompts)
    file += json{{"prompt", prompt}, {"id", "name of " + prompt}, {"other", {1, 2}}}.dump() + "\n";
  for (const char* live : {"1", "3", "16"}) {
    const std::string results = folder_.file("results.json");
    const RunResult run = run_ok(batch(file, {"--batch", live, "--json", results}));
    EXPECT_TRUE(run.err.starts_with("4 prompts, ")) << run;  // the last figures
    const auto lines = lines_of(run.out);
    ASSERT_EQ(lines.size(), prompts.size()) << run;
    const json generations = read_results(results).at("runs");
    EXPECT_EQ(read_results(results).at("settings").at("batch"), std::stoi(live));
    EXPECT_EQ(read_results(results).at("batch").at("n_tokens"), 48);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(lines[i].at("index"), i);
      EXPECT_EQ(lines[i].at("id"), "name of " + prompts[i]);
      EXPECT_EQ(lines[i].at("text"), alone(prompts[i]));
      EXPECT_EQ(lines[i].at("end"), "length");
      EXPECT_EQ(lines[i].at("n_tokens"), 12);
      EXPECT_EQ(lines[i].at("n_prompt_tokens"), prompts[i].size());
      EXPECT_EQ(generations[i].at("prompt"), prompts[i]);
      EXPECT_EQ(generations[i].at("text"), lines[i].at("text"));
      EXPECT_EQ(generations[i].at("tokens").size(), 12u);
    }
  }
}

TEST_F(GenerateBatch, APromptThatDoesNotFitFailsAlone) {
  const std::string file = json{{"prompt", "hello"}}.dump() + "\n" +
                           json{{"prompt", std::string(50, 'a')}}.dump() + "\n\n" +
                           json{{"prompt", "b."}}.dump();
  const RunResult run = run_program(batch(file));
  expect_complaint(run, 1, {"1 of 3 prompts failed"});
  const auto lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 3u) << run;
  EXPECT_EQ(lines[0].at("text"), alone("hello"));
  EXPECT_EQ(lines[1].at("error"), "the prompt has 50 tokens, the context is 40");
  EXPECT_FALSE(lines[1].contains("text"));
  EXPECT_EQ(lines[2].at("text"), alone("b."));
}

TEST_F(GenerateBatch, SaysHowFastItWas) {
  const RunResult run =
      run_ok({"generate", "-m", folder_.path(), "-n", "4", "--ignore-eos", "-f",
              folder_.write("prompts.txt", "{\"prompt\": \"ab\"}"), "--batch", "2"});
  for (const char* part : {"1 prompts, at most 2 at a time", "4 tokens", "tokens/s", "attention"})
    EXPECT_NE(run.err.find(part), std::string::npos) << part << "\n" << run;
}

TEST(EvalBatch, WindowsTogetherGiveTheSameLoss) {
  const ModelFolder folder;
  const std::string results = folder.file("results.json");
  const auto metrics = [&](const Args& more) {
    run_ok(joined(eval_of(folder, {"--quiet", "-c", "16", "--json", results}), more));
    return read_results(results).at("metrics");
  };
  const json alone = metrics({}), together = metrics({"--batch", "5"});
  EXPECT_EQ(together.at("n_tokens"), alone.at("n_tokens"));
  const double loss = alone.at("loss");
  // Other orders of float32 sums, as between backends (commands_test.cpp).
  EXPECT_NEAR(together.at("loss").get<double>(), loss, 1e-4 * loss);
}

class RefusesBatch : public testing::TestWithParam<Refusal> {};

TEST_P(RefusesBatch, WithOneLineAndAHint) { expect_refused(GetParam()); }

Refusal bad_lines(std::string name, const std::string& text, std::vector<std::string> fragments) {
  fragments.emplace_back("prompts.jsonl");
  return {.name = std::move(name),
          .build =
              [text](ModelFolder& folder) {
                return generate_of(folder, {"-f", folder.write("prompts.jsonl", text)});
              },
          .fragments = std::move(fragments)};
}

Refusal bad_batch(std::string name, const Args& more, std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [more](ModelFolder& folder) {
                return generate_of(
                    folder, joined({"-f", folder.write("p.jsonl", "{\"prompt\": \"ab\"}")}, more));
              },
          .fragments = std::move(fragments),
          .code = 2};
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusesBatch,
    testing::Values(
        bad_lines("NoPrompts", "\n \r\n", {"there are no prompts"}),
        bad_lines("EmptyFile", "", {"there are no prompts"}),
        bad_lines("NoJson", "{\"prompt\": \"a\"}\n\nplain text\n", {"line 3"}),
        bad_lines("HalfAnObject", "{\"prompt\": \"a\"}\n{\"prompt\": ", {"line 2"}),
        bad_lines("NoObject", "[\"a\"]\n", {"line 1", "expected a JSON object"}),
        bad_lines("NoPromptInIt", "{\"text\": \"a\"}\n", {"line 1", "there is no prompt"}),
        bad_lines("PromptIsANumber", "{\"prompt\": 7}\n", {"line 1", "expected a string"}),
        bad_lines("IdIsANumber", "{\"prompt\": \"a\", \"id\": 7}\n", {"line 1", "id"}),
        bad_lines("Deep", "{\"prompt\": " + std::string(10000, '[') + "\n", {"line 1"}),
        bad_batch("AuditOfSeveral", {"--attention", "refine", "--audit", "8"}, {"--audit", "one"}),
        bad_batch("PageOfSeveral", {"--html", "page.html"}, {"--html", "--json"}),
        bad_batch("NoneAtATime", {"--batch", "0"}, {"--batch"}),
        Refusal{.name = "BatchOfOnePrompt",
                .build =
                    [](ModelFolder& f) {
                      return generate_of(f, {"-p", "a", "--batch", "2"});
                    },
                .fragments = {"--batch", "-f"},
                .code = 2},
        Refusal{.name = "EvalOfPlans",
                .build =
                    [](ModelFolder& f) {
                      return eval_of(f, {"--attention", "keys", "--batch", "2"});
                    },
                .fragments = {"--batch", "perplexity"},
                .code = 2}),
    name_of);

}  // namespace
}  // namespace sluice::impl
