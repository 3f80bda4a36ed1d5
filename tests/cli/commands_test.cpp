// The commands at work, on golden checkpoints.

#include <cmath>
#include <set>

#include "cli/model_folder.h"
#include "cli/run_program.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

int64_t count_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// What every command writes about itself.
void expect_header(const json& results, const std::string& command) {
  EXPECT_EQ(results.at("schema"), 2);
  EXPECT_EQ(results.at("command"), command);
  EXPECT_TRUE(results.at("command_line").get<std::string>().starts_with("sluice " + command + " "))
      << results.at("command_line");
  EXPECT_EQ("sluice " + results.at("sluice_version").get<std::string>() + "\n",
            run_ok({"--version"}).out);
  for (const char* key : {"cpu", "isa", "threads", "gpu"})
    EXPECT_TRUE(results.at("machine").contains(key)) << key;
  for (const char* key :
       {"path", "family", "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "vocab"})
    EXPECT_TRUE(results.at("model").contains(key)) << key;
  EXPECT_EQ(results.at("model").at("sha256").get<std::string>().size(), 64u);
}

TEST(Program, TellsItsVersion) {
  const RunResult result = run_ok({"--version"});
  EXPECT_TRUE(result.out.starts_with("sluice ")) << result;
  EXPECT_EQ(count_lines(result.out), 1) << result;
  EXPECT_EQ(result.err, "");
}

TEST(Program, HelpNamesCommandsAndFlags) {
  const std::vector<std::string> common = {"-m,--model", "--device", "--dtype", "--threads",
                                           "--context",  "--quiet",  "--json",  "--help"};
  const auto help = [](const Args& args) {
    RunResult result = run_ok(args);
    EXPECT_EQ(result.err, "") << result;
    return result;
  };
  expect_all_in({"inspect", "generate", "eval", "needle", "--version"}, help({"--help"}));
  expect_all_in({"-m,--model", "--context", "--json"}, help({"inspect", "--help"}));
  const RunResult generate = help({"generate", "--help"});
  expect_all_in(common, generate);
  expect_all_in({"-p,--prompt", "-f,--file", "-n,--predict", "--temperature", "--top-k", "--top-p",
                 "--min-p", "--repetition-penalty", "--stop", "--seed", "--ignore-eos"},
                generate);
  const RunResult eval = help({"eval", "--help"});
  expect_all_in(common, eval);
  expect_all_in({"-f,--file", "--windows", "--separator"}, eval);
}

// ---- inspect ----

TEST(Inspect, WritesTheCommandAsItCanBeTypedAgain) {
  const ModelFolder folder;
  const std::string file = folder.file("it's a file.json");
  run_ok({"inspect", "-m", folder.path(), "--json", file});
  std::string quoted = file;
  test::replace_once(quoted, "'", "'\\''");
  EXPECT_EQ(read_results(file).at("command_line"),
            "sluice inspect -m " + folder.path() + " --json '" + quoted + "'");
}

TEST(Inspect, DescribesAFolder) {
  const ModelFolder folder;
  const std::string file = folder.file("results.json");
  const RunResult result = run_ok({"inspect", "-m", folder.path(), "--json", file});
  expect_all_in({"safetensors", "gpt2", "parameters     28800", "layers         2",
                 "d_model        32, inner 128", "2 of 16", "vocabulary     64, head tied",
                 "WordLevel, 64 tokens", "context        40", "28 tensors in f32", "memory f32",
                 "memory bf16"},
                result);
  EXPECT_EQ(result.err, "");
  const json results = read_results(file);
  expect_header(results, "inspect");
  const json& model = results.at("model");
  EXPECT_EQ(model.at("family"), "gpt2");
  EXPECT_EQ(model.at("format"), "safetensors");
  EXPECT_EQ(model.at("n_parameters"), 28800);
  EXPECT_EQ(model.at("max_positions"), 40);
  EXPECT_EQ(model.at("tokenizer").at("n_tokens"), 64);
  EXPECT_EQ(model.at("stored").at("f32").at("n_tensors"), 28);
}

TEST(Inspect, DescribesAGgufFile) {
  const RunResult result =
      run_ok({"inspect", "-m", ModelFolder::golden_file("gguf/llama-q8_0.gguf").string()});
  expect_all_in({"gguf", "llama", "RMS norm", "SiLU, gated", "rotary", "tensors in q8_0"}, result);
}

TEST(Inspect, AMissingTokenizerIsSaidNotRefused) {
  const ModelFolder folder;
  folder.remove("tokenizer.json");
  expect_all_in({"tokenizer      none: "}, run_ok({"inspect", "-m", folder.path()}));
}

TEST(Inspect, ContextSetsTheMemoryEstimate) {
  const ModelFolder folder("llama");
  // 2 layers, keys and values, 32 floats a token.
  expect_all_in({"10.0 KiB key/value cache at 20 tokens"},
                run_ok({"inspect", "-m", folder.path(), "-c", "20"}));
}

// ---- generate ----

class Generate : public testing::Test {
 protected:
  // The answer alone, without its line end. The end token is passed over so that lengths are known.
  std::string answer(const Args& more) const {
    const RunResult result =
        run_ok(joined({"generate", "-m", folder_.path(), "--quiet", "--ignore-eos"}, more));
    EXPECT_TRUE(result.err.starts_with("prompt ")) << result;  // the last figures
    EXPECT_EQ(count_lines(result.err), 1) << result;
    EXPECT_TRUE(result.out.ends_with('\n')) << result;
    return result.out.substr(0, result.out.size() - 1);
  }

  const ModelFolder folder_;
  const Args varied_{"-p", "hello", "-n", "24", "--temperature", "20"};  // nearly every token alike
};

TEST_F(Generate, GreedyTextIsTheSameTwice) {
  const Args args{"-p", "hello", "-n", "8"};
  const std::string first = answer(args);
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, answer(args));
  EXPECT_EQ(first, answer(joined(args, {"--threads", "1"})));
  EXPECT_EQ(first, answer(joined(args, {"--device", "reference"})));
}

TEST_F(Generate, PrintsThePromptAndTheRate) {
  const RunResult result =
      run_ok({"generate", "-m", folder_.path(), "-p", "hello", "-n", "8", "--ignore-eos"});
  EXPECT_EQ(result.out, "hello" + answer({"-p", "hello", "-n", "8"}) + "\n");
  EXPECT_NE(result.err.find("prompt 5 tokens"), std::string::npos) << result;
  EXPECT_NE(result.err.find("answer 8 tokens"), std::string::npos) << result;
  EXPECT_NE(result.err.find("tokens/s"), std::string::npos) << result;
}

TEST_F(Generate, TheSeedDecidesTheText) {
  std::set<std::string> texts;
  for (const char* seed : {"1", "2", "3", "4"})
    texts.insert(answer(joined(varied_, {"--seed", seed})));
  EXPECT_GT(texts.size(), 1u);
  const Args again = joined(varied_, {"--seed", "4"});
  EXPECT_EQ(answer(again), answer(again));
}

TEST_F(Generate, EndsBeforeAStopString) {
  const Args args = joined(varied_, {"--seed", "3"});
  const std::string whole = answer(args);
  ASSERT_GT(whole.size(), 12u);
  const std::string stop = whole.substr(8, 2);
  EXPECT_EQ(answer(joined(args, {"--stop", stop})), whole.substr(0, whole.find(stop)));
  const std::string earlier = whole.substr(4, 2);
  EXPECT_EQ(answer(joined(args, {"--stop", stop, "--stop", earlier})),
            whole.substr(0, std::min(whole.find(stop), whole.find(earlier))));
}

TEST_F(Generate, LengthZeroAddsNothing) {
  EXPECT_EQ(answer({"-p", "hello", "-n", "0"}), "");
  const RunResult result = run_ok({"generate", "-m", folder_.path(), "-p", "hello", "-n", "0"});
  EXPECT_EQ(result.out, "hello\n");
}

TEST_F(Generate, APromptFileEqualsThePrompt) {
  const std::string file = folder_.write("prompt.txt", "hello");
  EXPECT_EQ(answer({"-f", file, "-n", "8"}), answer({"-p", "hello", "-n", "8"}));
}

TEST_F(Generate, StopsWhereTheContextEnds) {
  const RunResult result =
      run_ok({"generate", "-m", folder_.path(), "-p", "hello", "-n", "100", "--ignore-eos"});
  EXPECT_NE(result.err.find("ended by context full"), std::string::npos) << result;
}

TEST_F(Generate, WritesWhatItDid) {
  const std::string file = folder_.file("results.json");
  const std::string text = answer({"-p", "hello", "-n", "8", "--seed", "9", "--json", file});
  const json results = read_results(file);
  expect_header(results, "generate");
  EXPECT_EQ(results.at("runs")[0].at("prompt"), "hello");
  EXPECT_EQ(results.at("runs")[0].at("text"), text);
  EXPECT_EQ(results.at("runs")[0].at("tokens").size(), 8u);
  EXPECT_EQ(results.at("runs")[0].at("end"), "length");
  for (const char* key : {"context", "predict", "temperature", "top_k", "top_p", "min_p",
                          "repetition_penalty", "stop", "seed"})
    EXPECT_TRUE(results.at("settings").contains(key)) << key;
  EXPECT_EQ(results.at("settings").at("seed"), 9);
}

TEST(GenerateFromGguf, ContinuesAPrompt) {
  const std::string model = ModelFolder::golden_file("gguf/gpt2-f32.gguf").string();
  const RunResult result = run_ok({"generate", "-m", model, "-p", "ab", "-n", "4", "--ignore-eos"});
  EXPECT_TRUE(result.out.starts_with("ab")) << result;
  EXPECT_NE(result.err.find("answer 4 tokens"), std::string::npos) << result;
}

// ---- eval ----

class Eval : public testing::Test {
 protected:
  Args args(const Args& more = {}) const {
    return joined({"eval", "-m", folder_.path(), "-f", text_, "--json", results_}, more);
  }
  json metrics(const Args& more) const {
    run_ok(args(joined({"--quiet"}, more)));
    return read_results(results_).at("metrics");
  }

  const ModelFolder folder_;
  const std::string text_ = folder_.write("text.txt", letter_text(1000));
  const std::string results_ = folder_.file("results.json");
};

TEST_F(Eval, PrintsARunningValueAndTheResult) {
  const RunResult result = run_ok(args());
  EXPECT_EQ(result.err, "");
  // The first token and 1000 letters: 1000 predictions in 25 windows of 40. A line for each, one
  // above and one below.
  EXPECT_EQ(count_lines(result.out), 27) << result;
  expect_all_in({"window", "tokens", "ppl", "perplexity ", " ± ", "nats/token",
                 "1000 tokens in 25 windows of 40"},
                result);
  const json results = read_results(results_);
  expect_header(results, "eval");
  EXPECT_EQ(results.at("model").at("dtype"), "f32");
  EXPECT_EQ(results.at("text").at("path"), text_);
  EXPECT_EQ(results.at("text").at("sha256").get<std::string>().size(), 64u);
  EXPECT_EQ(results.at("settings").at("context"), 40);
  EXPECT_EQ(results.at("settings").at("windows"), 25);
  const json& found = results.at("metrics");
  EXPECT_EQ(found.at("n_tokens"), 1000);
  const double loss = found.at("loss"), ppl = found.at("ppl");
  EXPECT_GT(loss, 0);
  EXPECT_NEAR(ppl, std::exp(loss), 1e-9 * ppl);
  EXPECT_GT(found.at("loss_stderr").get<double>(), 0);
  EXPECT_NEAR(found.at("ppl_stderr").get<double>(), ppl * found.at("loss_stderr").get<double>(),
              1e-9 * ppl);
}

TEST_F(Eval, WindowsEndIt) {
  const RunResult result = run_ok(args({"--windows", "3"}));
  EXPECT_EQ(count_lines(result.out), 5) << result;
  expect_all_in({"120 tokens in 3 windows of 40"}, result);
}

TEST_F(Eval, QuietPrintsTheResultOnly) {
  const RunResult result = run_ok(args({"--quiet"}));
  EXPECT_EQ(count_lines(result.out), 1) << result;
  EXPECT_TRUE(result.out.starts_with("perplexity ")) << result;
  EXPECT_EQ(result.err, "");
}

TEST_F(Eval, ContextCutsTheWindows) {
  run_ok(args({"--quiet", "-c", "16"}));
  const json results = read_results(results_);
  EXPECT_EQ(results.at("settings").at("context"), 16);
  EXPECT_EQ(results.at("settings").at("windows"), 63);  // 1000 / 16, rounded up
  EXPECT_EQ(results.at("metrics").at("n_tokens"), 1000);
}

TEST_F(Eval, TheSameRunGivesTheSameNumbers) {
  EXPECT_EQ(metrics({"--threads", "1"}), metrics({"--threads", "1"}));
}

TEST_F(Eval, CpuAgreesWithReference) {
  const double reference = metrics({"--device", "reference"}).at("loss");
  // Other orders of float32 sums: the worst logit differs by less than 2e-5 of the logits' range
  // (tests/golden), a loss of some nats by less than 1e-4 of itself.
  EXPECT_NEAR(metrics({"--device", "cpu"}).at("loss").get<double>(), reference, 1e-4 * reference);
}

TEST_F(Eval, Bf16StaysNearFloat32) {
  const double exact = metrics({}).at("loss");
  const json rounded = metrics({"--dtype", "bf16"});
  EXPECT_EQ(read_results(results_).at("model").at("dtype"), "bf16");
  // 8 bits of mantissa, 2^-9 at most for each rounding; two layers of random signs stay below 2%.
  EXPECT_NEAR(rounded.at("loss").get<double>(), exact, 0.02 * exact);
}

TEST_F(Eval, SeparatorsPartDocuments) {
  const std::string file =
      folder_.write("parts.txt", "one text.\n<|endoftext|>\nanother.\n<|endoftext|>\n");
  const auto count = [&](const Args& more) -> int64_t {
    run_ok(joined({"eval", "-m", folder_.path(), "-f", file, "--quiet", "--json", results_}, more));
    return read_results(results_).at("metrics").at("n_tokens");
  };
  // Two documents, each behind a first token, without the line ends around them; the very first
  // token is not predicted.
  EXPECT_EQ(count({}), 1 + 9 + 1 + 8 - 1);
  // Without parting, the separators are tokens of the text.
  EXPECT_EQ(count({"--separator", ""}), 9 + 1 + 1 + 1 + 8 + 1 + 1);
}

TEST_F(Eval, EveryCausalFamilyRuns) {
  for (const char* name : {"gptj", "gpt-neox", "opt", "llama", "mistral", "qwen2", "qwen3",
                           "smollm3", "phi3", "gpt2-sharded"}) {
    const ModelFolder folder(name);
    const std::string file = folder.write("text.txt", letter_text(300));
    expect_all_in({"perplexity ", "300 tokens"},
                  run_ok({"eval", "-m", folder.path(), "-f", file, "--quiet"}));
  }
}

// Memory must not grow with the text: 1 MB at a context of 1024 within the model's size and 1 GiB.
TEST_F(Eval, AMegabyteOfTextFitsInMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory would be measured";
  constexpr int kContext = 1024;
  folder_.set_config("n_positions", kContext);
  folder_.repeat_rows("transformer.wpe.weight", kContext);
  folder_.set_config("n_head", 1);
  const std::string file = folder_.write("long.txt", letter_text(1'000'000));
  const RunResult result =
      run_ok({"eval", "-m", folder_.path(), "-f", file, "--quiet", "-c", std::to_string(kContext)});
  expect_all_in({"1000000 tokens in 977 windows of 1024"}, result);
  const auto size =
      static_cast<int64_t>(std::filesystem::file_size(folder_.file("model.safetensors")));
  EXPECT_LT(result.peak_bytes, size + (int64_t{1} << 30));
  RecordProperty("peak_mib", std::to_string(result.peak_bytes >> 20));
}

}  // namespace
}  // namespace sluice::impl
