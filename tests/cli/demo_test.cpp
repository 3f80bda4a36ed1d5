// `sluice demo` on the model that comes with the program.

#include "cli/model_folder.h"
#include "cli/run_program.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::run_ok;
using test::run_program;

// A text short enough for a test, from the one that comes along.
class Demo : public testing::Test {
 protected:
  void SetUp() override {
    const std::string whole = test::read_bytes(fs::path(SLUICE_SHARE_DIR) / "demo" / "text.txt");
    dir_.write("text.txt", whole.substr(0, 900));
  }
  std::string path(const char* name) const { return (dir_.path() / name).string(); }
  std::vector<std::string> demo(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {
        "demo",           "-f", path("text.txt"), "--json", path("results.json"), "--html",
        path("page.html")};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  const test::TempDir dir_;
};

TEST_F(Demo, TellsTheStoryAndWritesPageAndFigures) {
  const auto run = run_ok(demo(), std::chrono::minutes(5));
  for (const char* heading : {"1. Many tokens", "2. The sets persist", "3. What attention",
                              "4. The same prompt", "5. What it saves", "sluice demo -m MODEL"})
    EXPECT_NE(run.out.find(heading), std::string::npos) << heading;
  const json results = json::parse(test::read_bytes(dir_.path() / "results.json"));
  EXPECT_EQ(results.at("command"), "demo");
  std::vector<std::string> commands;
  for (const json& part : results.at("parts")) {
    commands.push_back(part.at("command"));
    EXPECT_TRUE(
        part.at("command_line").get<std::string>().starts_with("sluice " + commands.back()));
    EXPECT_EQ(part.at("model"), results.at("model"));
  }
  EXPECT_EQ(commands, (std::vector<std::string>{"analyze", "analyze", "eval", "generate",
                                                "generate", "generate", "bench"}));
}

// The figures are enough: the page can be drawn again from them, and differs in the command only.
TEST_F(Demo, ThePageCanBeDrawnAgainFromTheFigures) {
  run_ok(demo({"--quiet"}), std::chrono::minutes(5));
  const std::string line =
      json::parse(test::read_bytes(dir_.path() / "results.json")).at("command_line");
  run_ok({"report", path("results.json"), "-o", path("again.html")});
  const auto without = [&](const char* name, const std::string& command) {
    std::string page = test::read_bytes(dir_.path() / name);
    const size_t at = page.find(json(command).dump());
    EXPECT_NE(at, std::string::npos) << name << ": " << command;
    if (at != std::string::npos) page.erase(at, json(command).dump().size());
    return page;
  };
  EXPECT_EQ(
      without("page.html", line),
      without("again.html", "sluice report " + path("results.json") + " -o " + path("again.html")));
}

// Every part says how to measure it alone; with the same settings it finds the same.
TEST_F(Demo, ItsPartsAreWhatTheirCommandsFind) {
  run_ok(demo({"--quiet"}), std::chrono::minutes(5));
  const json part = json::parse(test::read_bytes(dir_.path() / "results.json")).at("parts").at(2);
  run_ok({"eval", "-m", part.at("model").at("path"), "-f", path("text.txt"), "-c",
          std::to_string(part.at("settings").at("context").get<int64_t>()), "--windows", "3",
          "--attention", "keys,copy,paper", "--tau", "0.2,0.3,0.5", "--quiet", "--json",
          path("alone.json")},
         std::chrono::minutes(5));
  EXPECT_EQ(json::parse(test::read_bytes(dir_.path() / "alone.json")).at("runs"), part.at("runs"));
}

TEST_F(Demo, ATextTooShortIsRefusedBeforeTheWork) {
  dir_.write("text.txt", "A few words.");
  const auto run = run_program(demo());
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("too few"), std::string::npos) << run.err;
  EXPECT_FALSE(fs::exists(dir_.path() / "results.json"));
}

}  // namespace
}  // namespace sluice
