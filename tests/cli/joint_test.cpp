// sluice analyze --joint and --bases: what they write, and what they refuse.

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

Args joint_of(const ModelFolder& folder, Args more, const std::string& windows = "2") {
  Args args{"analyze", "-m", folder.path(), "-f",   folder.write("text.txt", letter_text(600)),
            "-c",      "32", "--windows",   windows};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// Bases of both spaces, of rank 4, from another text.
std::string make_bases(const ModelFolder& folder, const TempDir& out, const std::string& text,
                       const Args& selection = {"--selection", "normed,residual"}) {
  const std::string path = (out.path() / "b.safetensors").string();
  Args args{"calibrate", "-m", folder.path(), "-f", folder.write("other.txt", text), "-c", "32",
            "-o",        path, "--rank",      "4"};
  args.insert(args.end(), selection.begin(), selection.end());
  run_ok(args);
  return path;
}

TEST(AnalyzeJoint, MakesItsBasesFromTheRestOfTheText) {
  const ModelFolder folder;
  const TempDir out;
  const std::string results = (out.path() / "r.json").string();
  const RunResult run = run_ok(joint_of(folder, {"--joint", "--rank", "2,4", "--json", results}));
  EXPECT_NE(run.out.find("Joint selection. cascade-paper"), std::string::npos) << run;
  EXPECT_NE(run.out.find("that follow the windows"), std::string::npos) << run;
  EXPECT_NE(run.out.find("joint, if judged to pay"), std::string::npos) << run;
  EXPECT_EQ(run.err, "") << run;
  const json joint = read_results(results).at("joint");
  EXPECT_EQ(joint.at("rule"), "cascade-paper");
  EXPECT_EQ(joint.at("space"), "residual");
  EXPECT_EQ(joint.at("n_windows"), 2);
  EXPECT_TRUE(joint.at("bases").at("path").is_null());
  EXPECT_TRUE(joint.at("bases").at("same_text").is_null());
  EXPECT_EQ(joint.at("bases").at("text").at("path"), folder.file("text.txt"));
  ASSERT_EQ(joint.at("summary").at("ranks").size(), 2u);
  for (const json& rank : joint.at("summary").at("ranks"))
    for (const std::string how : {"", "_where_pays"}) {
      EXPECT_LE(rank.at("speedup_low" + how), rank.at("speedup_vs_plain" + how));
      EXPECT_LE(rank.at("speedup_vs_plain" + how), rank.at("speedup_high" + how));
    }
  ASSERT_FALSE(joint.at("layers").empty());
  for (const json& layer : joint.at("layers")) {
    ASSERT_EQ(layer.at("ranks").size(), 2u);
    EXPECT_EQ(layer.at("ranks")[1].at("rank"), 4);
    EXPECT_LE(layer.at("ranks")[0].at("energy"), layer.at("ranks")[1].at("energy"));
    EXPECT_GT(layer.at("ranks")[1].at("pairs"), 0.0);
  }
}

TEST(AnalyzeJoint, InheritsSetAndBasisInOnePass) {
  const ModelFolder folder;
  const TempDir out;
  const std::string results = (out.path() / "r.json").string();
  const RunResult run =
      run_ok(joint_of(folder, {"--running", "0,1", "--rank", "4", "--json", results}));
  EXPECT_NE(run.out.find("Joint cascade in one pass. cascade-paper"), std::string::npos) << run;
  const json one_pass = read_results(results).at("joint").at("one_pass");
  ASSERT_EQ(one_pass.size(), 2u);
  EXPECT_EQ(one_pass[0].at("updates"), one_pass[0].at("fresh_updates"));
  EXPECT_EQ(one_pass[1].at("updates"), 0.0);
  EXPECT_EQ(one_pass[1].at("work_set_alone"), one_pass[0].at("work_set_alone"));
}

TEST(AnalyzeJoint, TakesBasesFromAFileAndKnowsTheirText) {
  const ModelFolder folder;
  const TempDir out;
  const std::string results = (out.path() / "r.json").string();
  const auto bases_of = [&](const std::string& text, const std::string& warning) {
    const std::string path = make_bases(folder, out, text);
    const RunResult run =
        run_ok(joint_of(folder, {"--bases", path, "--select", "cascade-cover", "--json", results}));
    EXPECT_EQ(run.err, warning) << run;
    const json joint = read_results(results).at("joint");
    EXPECT_EQ(joint.at("space"), "normed");
    EXPECT_EQ(joint.at("bases").at("path"), path);
    for (const json& layer : joint.at("layers"))
      for (const json& rank : layer.at("ranks")) EXPECT_LE(rank.at("rank"), 4);
    return joint.at("bases").at("same_text").get<bool>();
  };
  EXPECT_FALSE(bases_of(letter_text(700), ""));
  EXPECT_TRUE(bases_of(letter_text(600), "sluice: the bases were made from this very text\n"));
}

TEST(AnalyzeJoint, RefusesInOneLine) {
  const ModelFolder folder;
  const TempDir out;
  const auto refused = [&](const Args& more, int code, const std::vector<std::string>& words) {
    expect_complaint(run_program(joint_of(folder, more)), code, words);
  };
  refused({"--rank", "4"}, 2, {"--rank is for --subspace and --joint"});
  refused({"--joint", "--rank", "0"}, 2, {"--rank"});
  refused({"--joint", "--rank", "9999"}, 1, {"--rank 9999"});
  refused({"--joint", "--space", "key"}, 1, {"--space names none", "normed"});
  expect_complaint(run_program(joint_of(folder, {"--joint", "--rank", "4"}, "999999")), 1,
                   {"after the windows the text has 0 tokens", "rank 4"});
  refused({"--bases", folder.file("text.txt")}, 1, {"text.txt"});
  refused({"--bases", folder.file("absent")}, 1, {"absent"});
  const std::string bases = make_bases(folder, out, letter_text(700));
  refused({"--bases", bases, "--rank", "5"}, 1, {"--rank 5 is more than the bases' 4"});
  const std::string without = make_bases(folder, out, letter_text(700), {});
  refused({"--bases", without}, 1,
          {"have no selection_residual for layer 0", "--selection residual"});
}

}  // namespace
}  // namespace sluice::impl
