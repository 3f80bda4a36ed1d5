// sluice calibrate and analyze --subspace: what they write, and what they refuse.

#include "cli/refusals.h"

namespace sluice::impl {
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
  const json r = read_results(results);
  ASSERT_FALSE(r.at("groups").empty());
  for (const json& group : r.at("groups")) {
    EXPECT_EQ(group.at("rank"), 4);
    const json &spectrum = group.at("spectrum"), &energies = group.at("energies");
    EXPECT_DOUBLE_EQ(energies[0].at("energy"),
                     spectrum[0].get<double>() + spectrum[1].get<double>());
    EXPECT_EQ(energies[1].at("energy"), group.at("energy"));
    // With 32 numbers a row, refining four directions never pays: all are fresh.
    EXPECT_EQ(group.at("inherited"), false);
    EXPECT_EQ(group.at("work_saved"), 0.0);
  }
  EXPECT_TRUE(r.at("summary").at("largest_energy_loss").is_null());
  EXPECT_NE(run.out.find("none was inherited to compare with"), std::string::npos) << run;
  EXPECT_NE(run.out.find("none inherited: with a width of 32"), std::string::npos) << run;
  EXPECT_NE(run.out.find("--inherit tries"), std::string::npos) << run;
  EXPECT_NE(read_bytes(bases).find(r.at("model").at("sha256").get<std::string>()),
            std::string::npos);
}

TEST(CalibrateCommand, InheritsWhereToldTo) {
  const ModelFolder folder;
  const TempDir out;
  const std::string bases = (out.path() / "b.safetensors").string(),
                    results = (out.path() / "r.json").string();
  const RunResult run = run_ok(calibrate_of(
      folder, bases,
      {"--rank", "4", "-c", "32", "--inherit", "--compare", "--quiet", "--json", results}));
  const json r = read_results(results);
  int64_t n_tried = 0, n_inherited = 0;
  double worst = 0;
  for (const json& group : r.at("groups")) {
    const bool tried = group.at("layer") != 0;
    EXPECT_EQ(group.at("start_energy").is_null(), !tried);
    EXPECT_EQ(group.at("iterations") > 0, tried);
    EXPECT_EQ(group.at("work_saved") == 0.0, !tried);
    n_tried += tried;
    if (group.at("inherited") != true) continue;
    ++n_inherited;
    worst =
        std::max(worst, group.at("fresh_energy").get<double>() - group.at("energy").get<double>());
  }
  const json& summary = r.at("summary");
  EXPECT_EQ(summary.at("n_tried"), n_tried);
  EXPECT_EQ(summary.at("n_inherited"), n_inherited);
  EXPECT_EQ(summary.at("largest_energy_loss").is_null(), n_inherited == 0);
  if (n_inherited > 0) {
    EXPECT_NEAR(summary.at("largest_energy_loss"), worst, 1e-12);
  }
}

TEST(CalibrateCommand, NeverWritesOverWhatItReads) {
  const ModelFolder folder;
  const TempDir out;
  const std::string text = out.write("text.txt", letter_text(200)).string();
  const std::string other = (out.path() / "." / "text.txt").string();
  for (const std::string& output : {text, other}) {
    expect_complaint(
        run_program({"calibrate", "-m", folder.path(), "-f", text, "-o", output, "--rank", "4"}), 2,
        {"text.txt is in use already"});
    EXPECT_EQ(read_bytes(text), letter_text(200));
  }
  const std::string bases = (out.path() / "b.safetensors").string();
  expect_complaint(run_program(calibrate_of(folder, bases, {"--rank", "4", "--json", bases})), 2,
                   {"b.safetensors is in use already"});
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

TEST(AnalyzeSubspace, RefusesARankThatNoBasisHas) {
  const ModelFolder folder;
  const auto refused = [&](const Args& more, const std::vector<std::string>& words) {
    Args args{"analyze",
              "-m",
              folder.path(),
              "-f",
              folder.write("text.txt", letter_text(200)),
              "--subspace",
              "-c",
              "8"};
    args.insert(args.end(), more.begin(), more.end());
    expect_complaint(run_program(args), 1, words);
  };
  refused({"--rank", "33"}, {"--rank 33", "attention_input"});
  refused({"--rank", "32", "--windows", "3"}, {"24 tokens are too few for the 32 directions"});
}

TEST(AnalyzeSubspace, ShowsBothAxes) {
  const ModelFolder folder;
  const TempDir out;
  const std::string results = (out.path() / "r.json").string();
  const RunResult run =
      run_ok({"analyze", "-m", folder.path(), "-f", folder.write("text.txt", letter_text(200)),
              "-c", "32", "--subspace", "--rank", "4", "--json", results});
  EXPECT_NE(run.out.find("Both axes"), std::string::npos) << run;
  // Four windows of 32; inner activations are 128 wide, so that nothing is said.
  EXPECT_EQ(run.err, "") << run;
  const RunResult few = run_ok({"analyze", "-m", folder.path(), "-f", folder.file("text.txt"), "-c",
                                "31", "--subspace", "--rank", "4"});
  EXPECT_NE(few.err.find("124 tokens are fewer than the 128 numbers of mlp_inner"),
            std::string::npos)
      << few;
  const json subspace = read_results(results).at("subspace");
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
}  // namespace sluice::impl
