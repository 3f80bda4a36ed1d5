// `sluice demo` on the model that comes with the program.

#include <cstdlib>

#include "cli/model_folder.h"
#include "cli/run_program.h"
#include "paths.h"
#include "sanitized.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::run_ok;
using test::run_program;

// One run for all tests, on a text short enough, in bf16: not the default, so that what the parts
// say of themselves must carry it.
class Demo : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<test::TempDir>();
    const std::string whole = test::read_bytes(test::share_dir() / "demo" / "text.txt");
    dir_->write("text.txt", whole.substr(0, 900));
    run_ = run_ok({"demo", "-f", path("text.txt"), "--dtype", "bf16", "--json",
                   path("results.json"), "--html", path("page.html")},
                  std::chrono::minutes(10));
    results_ = json::parse(test::read_bytes(path("results.json")));
    // tests/schema looks at them too.
    if (const char* kept = std::getenv("SLUICE_DEMO_RESULTS"))
      fs::copy_file(path("results.json"), kept, fs::copy_options::overwrite_existing);
  }
  static void TearDownTestSuite() { dir_.reset(); }
  static std::string path(const std::string& name) { return (dir_->path() / name).string(); }

  static std::unique_ptr<test::TempDir> dir_;
  static test::RunResult run_;
  static json results_;
};
std::unique_ptr<test::TempDir> Demo::dir_;
test::RunResult Demo::run_;
json Demo::results_;

TEST_F(Demo, TellsTheStoryInSixChapters) {
  for (const char* heading :
       {"1. Many tokens", "2. How far", "3. What attention", "4. The same prompt",
        "5. What it saves", "6. A loss you state", " demo -m MODEL"})
    EXPECT_NE(run_.out.find(heading), std::string::npos) << heading;
  std::vector<std::string> commands;
  for (const json& part : results_.at("parts")) commands.push_back(part.at("command"));
  std::vector<std::string> expected{"analyze",  "analyze",  "eval", "generate",
                                    "generate", "generate", "bench"};
  // A machine on which tuning would take long has a line instead.
  if (run_.out.find("Left out: with this model it takes minutes") == std::string::npos)
    expected.emplace_back("tune");
  EXPECT_EQ(commands, expected);
}

// The figures are enough: the page can be drawn again from them, and differs in the command only.
TEST_F(Demo, ThePageCanBeDrawnAgainFromTheFigures) {
  run_ok({"report", path("results.json"), "-o", path("again.html")});
  const auto without = [](const std::string& name, const std::string& command) {
    std::string page = test::read_bytes(path(name));
    const size_t at = page.find(json(command).dump());
    EXPECT_NE(at, std::string::npos) << name << ": " << command;
    if (at != std::string::npos) page.erase(at, json(command).dump().size());
    return page;
  };
  EXPECT_EQ(
      without("page.html", results_.at("command_line")),
      without("again.html", "sluice report " + path("results.json") + " -o " + path("again.html")));
}

// Every part names the command that finds the same alone.
TEST_F(Demo, ItsPartsAreWhatTheirCommandsFind) {
  if (test::kSanitized)
    GTEST_SKIP() << "each command has its own tests, and all of them take minutes here";
  for (const json& part : results_.at("parts")) {
    const std::string command = part.at("command");
    std::string line = part.at("command_line");
    ASSERT_TRUE(line.starts_with("sluice " + command + " ")) << line;
    if (command == "bench") continue;  // times differ
    if (const size_t at = line.find(" -o plan.json"); at != line.npos)
      line.replace(at, 13, " -o " + path("plan.json"));
    // As a person would paste it.
    const std::string script =
        dir_->write("again.sh", test::program_path() + line.substr(6) + " --quiet --json " +
                                    path("alone.json") + " > " + path("out.txt"));
    ASSERT_EQ(std::system(("bash " + script).c_str()), 0) << line;
    const json alone = json::parse(test::read_bytes(path("alone.json")));
    EXPECT_EQ(alone.at("model"), part.at("model"));
    EXPECT_EQ(alone.at("settings"), part.at("settings")) << command;
    if (command == "generate") {
      EXPECT_EQ(alone.at("runs")[0].at("text"), part.at("runs")[0].at("text"));
    } else if (command == "tune") {
      for (const char* key : {"contract", "calibration", "held_out", "cost", "plan"})
        EXPECT_EQ(alone.at(key), part.at(key)) << key;
    } else {
      EXPECT_EQ(alone.at("runs"), part.at("runs")) << command;
    }
  }
}

TEST_F(Demo, ATextTooShortIsRefusedBeforeTheWork) {
  const test::TempDir dir;
  const std::string text = dir.write("text.txt", "A few words.");
  const std::string results = dir.path() / "results.json";
  const auto run = run_program(
      {"demo", "-f", text, "--json", results, "--html", (dir.path() / "page.html").string()});
  EXPECT_EQ(run.code, 1) << run;
  EXPECT_NE(run.err.find("too few"), std::string::npos) << run;
  EXPECT_FALSE(fs::exists(results));
}

// Results never replace what they are made from.
TEST_F(Demo, OutputsThatAreInputsAreRefused) {
  const test::TempDir dir;
  const std::string text = dir.write("text.txt", std::string(900, 'a'));
  for (const test::Args& outputs : {test::Args{"--json", text}, test::Args{"--html", text},
                                    test::Args{"--json", (dir.path() / "one").string(), "--html",
                                               (dir.path() / "one").string()}}) {
    test::Args args = {"demo", "-f", text};
    args.insert(args.end(), outputs.begin(), outputs.end());
    const auto run = run_program(args);
    EXPECT_EQ(run.code, 2) << run;
    EXPECT_NE(run.err.find("overwritten"), std::string::npos) << run;
  }
  EXPECT_EQ(test::read_bytes(text), std::string(900, 'a'));
}

}  // namespace
}  // namespace sluice::impl
