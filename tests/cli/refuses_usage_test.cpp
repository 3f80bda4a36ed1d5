// Command lines that make no sense, and refusals that need more than a line of the table.

#include <unistd.h>

#include <limits>
#include <random>

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace test;

class RefusesUsage : public testing::TestWithParam<Refusal> {};

TEST_P(RefusesUsage, WithOneLineAndAHint) { expect_refused(GetParam()); }

// ---- command lines that make no sense ----

Refusal usage(std::string name, std::function<Args(ModelFolder&)> build,
              std::vector<std::string> fragments) {
  fragments.emplace_back("--help");
  return {.name = std::move(name),
          .build = std::move(build),
          .fragments = std::move(fragments),
          .code = 2};
}

Refusal bad_command_line(std::string name, const Args& args, std::vector<std::string> fragments) {
  return usage(
      std::move(name), [args](ModelFolder&) { return args; }, std::move(fragments));
}

Refusal bad_eval_flag(std::string name, const Args& more, std::vector<std::string> fragments) {
  return usage(
      std::move(name), [more](ModelFolder& folder) { return eval_of(folder, more); },
      std::move(fragments));
}

Refusal bad_generate_flag(std::string name, const Args& more, std::vector<std::string> fragments) {
  return usage(
      std::move(name),
      [more](ModelFolder& folder) {
        Args flags{"-p", "ab"};
        flags.insert(flags.end(), more.begin(), more.end());
        return generate_of(folder, flags);
      },
      std::move(fragments));
}

std::vector<Refusal> usage_refusals() {
  return {
      bad_command_line("UnknownCommand", {"evaluate"}, {"evaluate"}),
      bad_command_line("UnknownFlagBeforeTheCommand", {"--fast"}, {"--fast"}),
      bad_command_line("LineEndInAFlag", {"inspect", "-m", "x", "--a\nb"}, {"--a"}),
      bad_command_line("NoModel", {"eval", "-f", "text.txt"}, {"--model is required"}),
      bad_command_line("ModelWithoutValue", {"inspect", "-m"}, {"--model"}),
      bad_eval_flag("UnknownFlag", {"--fast"}, {"--fast"}),
      bad_eval_flag("StrayArgument", {"more.txt"}, {"more.txt"}),
      usage("EvalWithoutText",
            [](ModelFolder& folder) {
              return Args{"eval", "-m", folder.path()};
            },
            {"--file is required"}),
      bad_eval_flag("UnknownDtype", {"--dtype", "f8"}, {"--dtype", "f8", "bf16"}),
      bad_eval_flag("UnknownDevice", {"--device", "tpu"}, {"--device", "tpu", "cpu"}),
      bad_eval_flag("NegativeThreads", {"--threads", "-1"}, {"--threads", "-1"}),
      bad_eval_flag("ContextIsText", {"--context", "abc"}, {"--context", "abc"}),
      bad_eval_flag("ContextIsNegative", {"--context", "-5"}, {"--context", "-5"}),
      bad_eval_flag("ContextIsHuge", {"--context", "99999999999999999999"}, {"--context"}),
      bad_eval_flag("NegativeWindows", {"--windows", "-1"}, {"--windows", "-1"}),
      usage("NeitherPromptNorFile", [](ModelFolder& folder) { return generate_of(folder); },
            {"no prompt", "-p", "-f"}),
      bad_generate_flag("PromptAndFile", {"-f", "prompt.txt"}, {"not both"}),
      bad_generate_flag("NegativeLength", {"-n", "-1"}, {"--predict", "-1"}),
      bad_generate_flag("TopPOverOne", {"--top-p", "2"}, {"--top-p", "2"}),
      bad_generate_flag("TopPOfZero", {"--top-p", "0"}, {"--top-p", "0"}),
      bad_generate_flag("NegativeTopK", {"--top-k", "-1"}, {"--top-k", "-1"}),
      bad_generate_flag("MinPOverOne", {"--min-p", "1.5"}, {"--min-p", "1.5"}),
      bad_generate_flag("NegativeTemperature", {"--temperature", "-1"}, {"--temperature", "-1"}),
      bad_generate_flag("TemperatureIsNan", {"--temperature", "nan"}, {"--temperature", "nan"}),
      bad_generate_flag("TemperatureIsText", {"--temperature", "warm"}, {"--temperature", "warm"}),
      bad_generate_flag("PenaltyOfZero", {"--repetition-penalty", "0"},
                        {"--repetition-penalty", "0"}),
      bad_generate_flag("EmptyStop", {"--stop", ""}, {"stop", "empty"}),
      bad_generate_flag("EmptyPlan", {"--plan", ""}, {"--plan", "empty"}),
      bad_generate_flag("EmptyResults", {"--json", ""}, {"--json", "empty"}),
      bad_generate_flag("NegativeSeed", {"--seed", "-1"}, {"--seed", "-1"}),
      bad_generate_flag("SeedOf65Bits", {"--seed", "18446744073709551616"}, {"--seed", "2^64"}),
      bad_eval_flag("EmptyPage", {"--html", ""}, {"--html", "empty"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Usage, RefusesUsage, testing::ValuesIn(usage_refusals()), name_of);

// ---- refusals that need more than a line of the table ----

TEST(Refusals, NoCommandShowsTheHelp) {
  const RunResult result = run_program({});
  expect_no_crash(result);
  EXPECT_EQ(result.code, 2) << result;
  EXPECT_NE((result.out + result.err).find("sluice generate -m MODEL"), std::string::npos)
      << result;
}

TEST(Refusals, UnreadableFilesAreNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every file";
  ModelFolder folder;
  const auto lock = [&](const std::string& name) {
    fs::permissions(folder.file(name), fs::perms::none);
    return folder.file(name);
  };
  const auto unlock = [&](const std::string& name) {
    fs::permissions(folder.file(name), fs::perms::owner_read | fs::perms::owner_write);
  };
  const Args args = eval_of(folder);
  for (const std::string name :
       {"text.txt", "config.json", "model.safetensors", "tokenizer.json"}) {
    lock(name);
    expect_complaint(run_program(args), 1, {name});
    unlock(name);
  }
}

TEST(Refusals, AModelsOwnFilesAreNotWrittenTo) {
  ModelFolder folder;
  for (const std::string name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    const std::string before = read_bytes(folder.file(name));
    for (const std::string flag : {"--json", "--html"}) {
      const RunResult result = run_program(eval_of(folder, {flag, folder.file(name)}));
      expect_complaint(result, 2, {name, "model's own files"});
    }
    EXPECT_EQ(read_bytes(folder.file(name)), before) << name;
  }
}

TEST(Refusals, ABlockLongerThanAnyTextTakesNoMemory) {
  ModelFolder folder;
  const auto peak = [&](const char* block) {
    return run_ok(generate_of(folder, {"-p", "abab", "--attention", "keys", "--tau", "0.3",
                                       "--window", block, "--block", block}))
        .peak_bytes;
  };
  EXPECT_LT(peak("1073741824"), peak("128") + (int64_t{64} << 20));
}

// What is known before the work is said before it.
TEST(Refusals, ATextThatIsReadTwiceIsNoPipe) {
  ModelFolder folder;
  Args args = eval_of(folder, {"--json", folder.file("r.json")});
  args[4] = "/dev/null";
  const RunResult result = run_program(args);
  expect_complaint(result, 1, {"/dev/null", "read more than once"});
  EXPECT_EQ(result.out, "") << result;
}

// Said before the work, not after hours of it.
TEST(Refusals, AResultsFileThatCannotBeWrittenIsRefusedAtOnce) {
  ModelFolder folder;
  const std::string missing = folder.file("no_folder/results.json");
  const RunResult result = run_program(eval_of(folder, {"--json", missing}));
  expect_complaint(result, 1, {"results.json", "cannot be written", "is the folder there"});
  EXPECT_EQ(result.out, "") << result;
}

TEST(Refusals, ResultsOverAFolderLeaveNothingBehind) {
  ModelFolder folder;
  const std::string taken = folder.file("results");
  fs::create_directory(taken);
  const RunResult result = run_program(eval_of(folder, {"--json", taken}));
  expect_complaint(result, 1, {"results", "cannot be written"});
  EXPECT_EQ(result.out, "") << result;
  EXPECT_FALSE(fs::exists(taken + ".part"));
}

std::string junk(size_t n_bytes) {
  std::mt19937 random(5);
  std::string bytes;
  while (bytes.size() < n_bytes) bytes += static_cast<char>(random() & 0xff);
  return bytes;
}

void expect_answer_or_complaint(const RunResult& result) {
  if (result.code == 0)
    expect_no_crash(result);
  else
    expect_complaint(result, 1, {});
}

// Bytes that are no text may be predicted or refused, by every kind of tokenizer.
TEST(Refusals, JunkForTextDoesNotCrash) {
  ModelFolder folder;
  constexpr int64_t kVocab = 1000;  // more than any golden tokenizer has
  folder.set_config("vocab_size", kVocab);
  folder.repeat_rows("transformer.wte.weight", kVocab);
  const std::string text = folder.write("junk.txt", junk(20'000) + std::string(5000, '\0'));
  const std::string prompt = folder.write("prompt.txt", junk(12));
  for (const char* name :
       {"gpt2", "llama3", "llama2", "unigram-bytes", "bert-uncased", "word-bpe"}) {
    SCOPED_TRACE(name);
    folder.remove("tokenizer_config.json");
    const fs::path tokenizer = ModelFolder::golden_file("tokenizers") / name;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      if (fs::exists(tokenizer / file)) folder.write(file, test::read_bytes(tokenizer / file));
    expect_answer_or_complaint(
        run_program({"eval", "-m", folder.path(), "-f", text, "--quiet", "--windows", "100"}));
    expect_answer_or_complaint(run_program({"generate", "-m", folder.path(), "-f", prompt, "-n",
                                            "3", "--json", folder.file("out.json")}));
  }
}

// Weights that are not numbers give scores that are not numbers: sorting and drawing must survive.
TEST(Refusals, WeightsThatAreNotNumbersDoNotCrash) {
  for (const size_t every : {1u, 3u, 7u}) {
    ModelFolder folder;
    folder.edit_tensors([&](json& header, std::string& data) {
      const size_t begin = header["transformer.wte.weight"]["data_offsets"][0];
      const std::string nan = pack(std::numeric_limits<float>::quiet_NaN());
      for (size_t row = 5; row < 64; row += every) data.replace(begin + row * 32 * 4, 4, nan);
    });
    for (const Args& more : {Args{}, Args{"--temperature", "1"},
                             Args{"--temperature", "1", "--top-k", "5", "--top-p", "0.9"}}) {
      Args flags{"-p", "ab", "--ignore-eos"};
      flags.insert(flags.end(), more.begin(), more.end());
      const RunResult result = run_program(generate_of(folder, flags));
      expect_no_crash(result);
    }
    const std::string results = folder.file("results.json");
    expect_no_crash(run_program(eval_of(folder, {"--quiet", "--json", results})));
  }
}

}  // namespace
}  // namespace sluice::impl
