// The commands on a CUDA device, each of them SKIPPED without one: in f32 their figures are the
// CPU's but for round-off.

#include "backend/cuda/runtime/device.h"
#include "cli/encoder.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

// Blocks small enough for a context of 40.
const Args kKeys{"--attention", "keys", "--tau", "0.5", "--window", "8", "--block", "8"};

class CudaCommand : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  RunResult on(const std::string& device, const Args& args) const {
    return run_ok(joined(args, {"--device", device, "--quiet", "--json", file}));
  }
  json results(const std::string& device, const Args& args) const {
    on(device, args);
    return read_results(file);
  }

  const ModelFolder folder{GetParam()};
  const TempDir out;
  const std::string file = (out.path() / "r.json").string(),
                    bases = (out.path() / "b.safetensors").string(),
                    plan = (out.path() / "plan.json").string();
  const std::string text = folder.write("text.txt", letter_text(300));
};

TEST_P(CudaCommand, GeneratesTheTextOfTheCpu) {
  const Args dense{"generate", "-m", folder.path(), "-p", "abab", "-n", "8"};
  EXPECT_EQ(on("cuda", dense).out, on("cpu", dense).out);
  // Steps of bf16 are recorded, and their text may be another one.
  const json bf16 = results("cuda", joined(dense, {"--dtype", "bf16"}));
  EXPECT_EQ(bf16.at("runs")[0].at("tokens").size(), 8u);
  EXPECT_NE(bf16.at("machine").at("gpu").get<std::string>().find("compute capability"),
            std::string::npos);
}

TEST_P(CudaCommand, EvaluatesAsTheCpuDoes) {
  run_ok({"calibrate", "-m", folder.path(), "-f", folder.write("other.txt", letter_text(400)), "-o",
          bases, "--rank", "8", "-c", "32", "--device", "cuda", "--quiet"});
  const Args eval = joined({"eval", "-m", folder.path(), "-f", text, "--linear", "dense,gsi,graded",
                            "--bases", bases, "--epsilon", "0.5", "--attention", "keys,copy"},
                           Args(kKeys.begin() + 2, kKeys.end()));
  const json found = results("cuda", eval), expected = results("cpu", eval);
  ASSERT_EQ(found.at("runs").size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    SCOPED_TRACE(expected.at("runs")[i].at("settings").dump());
    const json &got = found.at("runs")[i].at("metrics"),
               &cpu = expected.at("runs")[i].at("metrics");
    EXPECT_EQ(got.at("n_tokens"), cpu.at("n_tokens"));
    // One token in 300 that is decided otherwise would be seen in neither.
    EXPECT_NEAR(got.at("ppl").get<double>() / cpu.at("ppl").get<double>(), 1, 1e-3);
    EXPECT_NEAR(got.at("ppl_base").get<double>() / cpu.at("ppl_base").get<double>(), 1, 1e-4);
    for (const char* share : {"clusters_fraction", "keys_read_fraction", "weight_bytes_fraction"})
      EXPECT_NEAR(got.at(share).get<double>(), cpu.at(share).get<double>(), 0.01) << share;
    EXPECT_LT(got.at("weight_bytes_fraction").get<double>(), 1 + 1e-9) << i;
  }
}

TEST_P(CudaCommand, AnalyzesAsTheCpuDoes) {
  const Args analyze{"analyze", "-m",      folder.path(), "-f",         text,        "-c", "32",
                     "--tau",   "0.3,0.6", "--space",     "normed,key", "--windows", "2"};
  const json found = results("cuda", analyze), expected = results("cpu", analyze);
  ASSERT_EQ(found.at("runs").size(), expected.at("runs").size());
  for (size_t i = 0; i < expected.at("runs").size(); ++i) {
    const json &got = found.at("runs")[i], &cpu = expected.at("runs")[i];
    SCOPED_TRACE(cpu.at("space").dump() + " " + cpu.at("tau").dump());
    ASSERT_EQ(got.at("rows").size(), cpu.at("rows").size());
    for (size_t row = 0; row < cpu.at("rows").size(); ++row) {
      const json& here = cpu.at("rows")[row];
      EXPECT_EQ(got.at("rows")[row].at("rule"), here.at("rule"));
      if (here.at("rule") == cpu.at("summary").at("rule")) {
        EXPECT_EQ(got.at("rows")[row].at("n_reps"), here.at("n_reps"))
            << "layer " << here.at("layer");
      }
    }
  }
}

TEST_P(CudaCommand, TunesAPlanThatOthersFollow) {
  std::string documents;
  for (int i = 0; i < 12; ++i) documents += letter_text(90) + std::to_string(i) + "<|endoftext|>";
  const Args of_text{"-m", folder.path(), "-f", folder.write("documents.txt", documents),
                     "-c", "32"};
  const json tuned = results("cuda", joined(joined({"tune"}, of_text),
                                            {"-o", plan, "--max-kl", "0.5", "--objective", "memory",
                                             "--attention", "keys", "--tau", "0.5", "--window", "8",
                                             "--windows", "2", "--held-out", "3", "--no-needles"}));
  EXPECT_EQ(tuned.at("command"), "tune");
  EXPECT_EQ(read_results(plan).at("measured").at("dtype"), "f32");
  const json evaluated = results("cuda", joined(joined({"eval"}, of_text), {"--plan", plan}));
  EXPECT_EQ(evaluated.at("runs")[0].at("settings").at("plan"), "plan.json");
}

TEST_P(CudaCommand, Benches) {
  const json found = results(
      "cuda",
      joined({"bench", "-m", folder.path(), "-c", "16", "-n", "4", "--repeat", "1"}, kKeys));
  ASSERT_EQ(found.at("cases").size(), 4u);
  for (const json& found_case : found.at("cases"))
    EXPECT_GT(found_case.at("tokens_per_s").get<double>(), 0) << found_case;
}

class CudaEncoder : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  json eval(const std::string& device) const {
    run_ok({"eval", "-m", encoder.folder.path(), "-f", encoder.text, "--json", encoder.results,
            "--attention", "paper,copy,keys,refine", "--tau", "0.5", "--device", device,
            "--quiet"});
    return read_results(encoder.results);
  }
  const Encoder encoder{GetParam()};
};

TEST_P(CudaEncoder, EvaluatesAsTheCpuDoes) {
  const json found = eval("cuda"), expected = eval("cpu");
  ASSERT_EQ(found.at("runs").size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(expected.at("runs")[i].at("settings").dump());
    const json &got = found.at("runs")[i].at("metrics"),
               &cpu = expected.at("runs")[i].at("metrics");
    const auto near = [&](const char* name, double tolerance) {
      EXPECT_NEAR(got.at(name).get<double>(), cpu.at(name).get<double>(), tolerance) << name;
    };
    EXPECT_EQ(got.at("accuracy_base"), cpu.at("accuracy_base"));
    // Some thousand additions in f32, in another order.
    near("ppl_base", 1e-4 * cpu.at("ppl_base").get<double>());
    near("kl_mean", 1e-4);
    near("hidden_relative_error", 1e-3);
    near("keys_read_fraction", 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, CudaEncoder, testing::Values("bert", "esm"),
                         [](const auto& test) { return std::string(test.param); });
INSTANTIATE_TEST_SUITE_P(Golden, CudaCommand, testing::Values("gpt2", "llama"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice::impl
