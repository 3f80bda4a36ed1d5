// Standard streams that are closed or full. By a shell, which has the words for it.

#include <sys/wait.h>

#include <cstdlib>

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using namespace test;

class Streams : public testing::Test {
 protected:
  // Exit code, as a shell has it.
  int run(const std::string& words) const {
    const int status = std::system(("'" + program_path() + "' " + words + " </dev/null").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string to(const std::string& name) const { return "'" + (out.path() / name).string() + "'"; }

  ModelFolder folder;
  const TempDir out;
  const std::string generate = "generate -m '" + folder.path() + "' -p abab -n 4 ";
};

TEST_F(Streams, LostOutputIsSaid) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const std::string& words :
       {generate, "inspect -m '" + folder.path() + "'", std::string("--help")})
    for (const char* lost : {" >/dev/full", " >&-"}) {
      EXPECT_EQ(run(words + lost + " 2>" + to("err")), 1) << words << lost;
      const std::string said = read_bytes(out.path() / "err");
      EXPECT_NE(said.find("standard output cannot be written"), std::string::npos) << said;
      EXPECT_EQ(said.find("internal error"), std::string::npos) << said;
    }
}

TEST_F(Streams, AnUnwritableStderrIsNoReasonToStop) {
  for (const char* lost : {" 2>&-", " 2>/dev/full"}) {
    if (std::string(lost).ends_with("full") && !std::filesystem::exists("/dev/full")) continue;
    EXPECT_EQ(run(generate + "--json " + to("r.json") + " >" + to("text") + lost), 0) << lost;
    EXPECT_NE(read_bytes(out.path() / "r.json").find("\"prefill_tokens_per_s\""),
              std::string::npos);
    EXPECT_EQ(run(std::string("bogus >") + to("text") + lost), 2) << lost;
  }
  // A file that is opened must not take the place of a closed stream.
  EXPECT_EQ(run(generate + "--json " + to("s.json") + " >&- 2>&-"), 1);
  EXPECT_EQ(nlohmann::json::parse(read_bytes(out.path() / "s.json")).at("command"), "generate");
}

}  // namespace
}  // namespace sluice::impl
