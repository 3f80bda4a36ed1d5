// --weights: what a model's matrices are in memory.

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

json bench_memory(const ModelFolder& folder, const Args& more) {
  const std::string file = folder.file("results.json");
  run_ok(joined(
      {"bench", "-m", folder.path(), "--repeat", "1", "-c", "8", "-n", "2", "--json", file}, more));
  return read_results(file).at("memory");
}

TEST(Weights, BlocksTakeLessMemory) {
  const ModelFolder folder;
  const int64_t f32 = bench_memory(folder, {}).at("weight_bytes");
  EXPECT_GT(f32, 0);
  EXPECT_EQ(bench_memory(folder, {"--weights", "f32"}).at("weight_bytes"), f32);
  for (const char* type : {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1"}) {
    const json memory = bench_memory(folder, {"--weights", type});
    EXPECT_LT(memory.at("weight_bytes"), f32 / 2) << type;
    EXPECT_GT(memory.at("peak_bytes"), memory.at("weight_bytes")) << type;
  }
}

TEST(Weights, TypesThatDoNotFitAreNamedOnce) {
  const ModelFolder folder;
  const Args args{"generate", "-m", folder.path(), "-p", "ab", "-n", "2", "--weights", "q4_k"};
  const RunResult result = run_ok(args);
  const size_t at = result.err.find("that blocks of q4_k do not divide");
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("that blocks of", at + 1), std::string::npos);
}

TEST(Weights, RefusesOtherNamesAndPlainTypesOfAnotherDtype) {
  const ModelFolder folder;
  const RunResult unknown =
      run_program({"generate", "-m", folder.path(), "-p", "a", "--weights", "q3_k"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("q3_k"), std::string::npos) << unknown.err;
  const RunResult plain =
      run_program({"generate", "-m", folder.path(), "-p", "a", "--weights", "bf16"});
  EXPECT_EQ(plain.code, 1);
  EXPECT_NE(plain.err.find("weights of bf16 do not go with activations of f32"), std::string::npos)
      << plain.err;
}

}  // namespace
}  // namespace sluice::impl
