// sluice report: a page from what other commands wrote, and its refusals.

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using namespace test;

TEST(Report, MakesAPageOfWhatTheOthersWrite) {
  const ModelFolder folder("gpt2");
  const fs::path out = folder.path();
  const std::string text = folder.write("text.txt", letter_text(200));
  const std::string page = out / "page.html";
  run_ok({"inspect", "-m", folder.path(), "--json", out / "inspect.json"});
  run_ok({"analyze", "-m", folder.path(), "-f", text, "-c", "16", "--windows", "1", "--json",
          out / "analyze.json"});
  run_ok({"eval", "-m", folder.path(), "-f", text, "-c", "16", "--attention", "keys", "--tau",
          "0.3,0.5", "--json", out / "eval.json"});
  run_ok({"generate", "-m", folder.path(), "-p", "ab", "-n", "4", "--json", out / "generate.json"});
  const RunResult result = run_ok({"report", out / "analyze.json", out / "eval.json",
                                   out / "generate.json", out / "inspect.json", "-o", page});
  EXPECT_NE(result.out.find(page + ": "), std::string::npos) << result;
  EXPECT_NE(result.out.find("analyze, eval, generate, inspect"), std::string::npos) << result;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result;
  const std::string html = read_bytes(page);
  EXPECT_TRUE(html.starts_with("<!doctype html>") || html.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(html.find(text), std::string::npos);

  run_ok({"report", out / "eval.json", "-o", page});
  EXPECT_LT(read_bytes(page).size(), html.size()) << "an old page is replaced";
}

TEST(Report, LeavesTheOldPageWhereItRefuses) {
  const TempDir folder;
  const std::string page = folder.write("page.html", "old");
  const std::string good =
      folder.write("good.json", R"({"schema": 1, "command": "bench", "cases": []})");
  const std::string newer = folder.write("newer.json", R"({"schema": 9, "command": "bench"})");
  const RunResult result = run_program({"report", good, newer, "-o", page});
  expect_complaint(result, 1, {newer, "schema: 9 was written by a newer sluice"});
  EXPECT_EQ(result.out, "") << result;
  EXPECT_EQ(read_bytes(page), "old");
}

TEST(Report, RefusesWhatIsNotResults) {
  const TempDir folder;
  const std::string page = folder.path() / "page.html";
  const auto refused = [&](const std::string& content, const std::vector<std::string>& fragments) {
    expect_complaint(run_program({"report", folder.write("r.json", content), "-o", page}), 1,
                     fragments);
    EXPECT_FALSE(fs::exists(page));
  };
  refused("", {"r.json", "empty"});
  refused(R"({"schema": 1, "comm)", {"r.json", "not valid JSON"});
  refused(R"({"architectures": ["GPT2LMHeadModel"]})", {"r.json", "no `schema`"});
  refused(R"({"schema": 1, "command": "bench", "cases": {}})",
          {"r.json: cases: expected an array, found an object"});
  expect_complaint(run_program({"report", folder.path() / "none.json"}), 1, {"none.json"});
  expect_complaint(run_program({"report", folder.path()}), 1, {folder.path().string()});
}

TEST(Report, RefusesWhereItCannotWrite) {
  const TempDir folder;
  const std::string good =
      folder.write("good.json", R"({"schema": 1, "command": "bench", "cases": []})");
  expect_complaint(run_program({"report", good, "-o", folder.path() / "none" / "page.html"}), 1,
                   {"page.html", "cannot be written"});
  expect_complaint(run_program({"report", good, "-o", folder.path()}), 1, {"cannot be written"});
}

TEST(Report, RefusesCommandLinesThatMakeNoSense) {
  const TempDir folder;
  const std::string good =
      folder.write("good.json", R"({"schema": 1, "command": "bench", "cases": []})");
  expect_complaint(run_program({"report"}), 2, {"files is required"});
  expect_complaint(run_program({"report", good, "-o", good}), 2, {good, "overwritten"});
  EXPECT_NE(read_bytes(good).find("schema"), std::string::npos);
}

}  // namespace
}  // namespace sluice::impl
