// sluice calibrate and analyze --subspace: what they write, and what they refuse.

#include "cli/refusals.h"

namespace sluice {
namespace {

using nlohmann::json;
using namespace test;

Args calibrate_of(const ModelFolder& folder, const std::string& output, Args more = {}) {
  Args args{"calibrate", "-m",  folder.path(), "-f", folder.write("text.txt", letter_text(200)),
            "-o",        output};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(CalibrateCommand, WritesASidecarAndItsFigures) {
  const ModelFolder folder;
  const TempDir out;
  const std::string bases = (out.path() / "b.safetensors").string(),
                    results = (out.path() / "r.json").string();
  const std::string before = read_bytes(folder.file("model.safetensors"));
  const RunResult run = run_ok(
      calibrate_of(folder, bases, {"--rank", "2,4", "-c", "32", "--compare", "--json", results}));
  EXPECT_NE(run.out.find("energy k=4"), std::string::npos) << run;
  EXPECT_NE(run.err.find("fewer than the 512 asked for"), std::string::npos) << run;
  EXPECT_EQ(read_bytes(folder.file("model.safetensors")), before);
  const json r = json::parse(read_bytes(results));
  ASSERT_FALSE(r.at("groups").empty());
  for (const json& group : r.at("groups")) {
    EXPECT_EQ(group.at("rank"), 4);
    EXPECT_LE(group.at("energies")[0].at("energy"), group.at("energy"));
    EXPECT_LE(group.at("work_saved"), 1.0);
  }
  EXPECT_NE(read_bytes(bases).find(r.at("model").at("sha256").get<std::string>()),
            std::string::npos);
}

TEST(CalibrateCommand, RefusesInOneLine) {
  const ModelFolder folder;
  const TempDir out;
  const std::string bases = (out.path() / "b.safetensors").string();
  const auto refused = [&](const Args& args, int code, const std::vector<std::string>& words) {
    expect_complaint(run_program(args), code, words);
    EXPECT_FALSE(std::filesystem::exists(bases));
  };
  refused(calibrate_of(folder, bases, {"--rank", "0"}), 2, {"--rank"});
  refused(calibrate_of(folder, bases, {"--rank", "9999"}), 1, {"--rank 9999", "attention_input"});
  refused(calibrate_of(folder, bases), 2, {"--rank is required"});
  refused(calibrate_of(folder, bases, {"--rank", "4", "--fresh", "--inherit"}), 2, {"--fresh"});
  refused(calibrate_of(folder, folder.file("b.safetensors"), {"--rank", "4"}), 1,
          {"among the model's own files"});
  refused({"calibrate", "-m", folder.path(), "-f", folder.write("short.txt", "abc"), "-o", bases,
           "--rank", "8"},
          1, {"tokens", "rank 8"});
}

TEST(AnalyzeSubspace, ShowsBothAxes) {
  const ModelFolder folder;
  const TempDir out;
  const std::string results = (out.path() / "r.json").string();
  const RunResult run =
      run_ok({"analyze", "-m", folder.path(), "-f", folder.write("text.txt", letter_text(200)),
              "-c", "32", "--subspace", "--rank", "4", "--json", results});
  EXPECT_NE(run.out.find("Both axes"), std::string::npos) << run;
  const json subspace = json::parse(read_bytes(results)).at("subspace");
  EXPECT_EQ(subspace.at("rank"), 4);
  bool compared = false;
  for (const json& group : subspace.at("groups")) {
    EXPECT_LE(group.at("effective_rank_90"), group.at("effective_rank_99"));
    EXPECT_EQ(group.at("coherence_prev").is_null(), group.at("layer") == 0);
    compared |= group.at("layer") != 0;
  }
  EXPECT_TRUE(compared);
}

}  // namespace
}  // namespace sluice
