// What happens to the program's files: outputs that cannot be written, signals, limits of the
// shell, files that change while they are read. By a shell, which has the words for it.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "cli/faults_fixture.h"
#include "cli/terminal.h"

namespace sluice::impl {
namespace {

using namespace test;
namespace fs = std::filesystem;

TEST_F(Faults, ABrokenPipeLosesNoResults) {
  // A pipe that nobody reads, from the beginning.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  const std::string broken = " >&" + std::to_string(ends[1]);
  EXPECT_EQ(shell(generate + "--json r.json" + broken), 1);
  EXPECT_TRUE(is_results("r.json"));
  EXPECT_NE(said.find("sluice: standard output cannot be written"), std::string::npos) << said;
  EXPECT_EQ(shell("sluice tokenize " + model + "-p abab --json t.json" + broken), 1);
  EXPECT_TRUE(is_results("t.json"));
  // Without a file there is nothing to go on for.
  EXPECT_EQ(shell(generate + broken + "; exit $?"), 128 + SIGPIPE) << said;
  ::close(ends[1]);
}

TEST_F(Faults, WhatStandsInALogStays) {
  out.write("log", "earlier\n");
  EXPECT_EQ(shell(generate + "--json /dev/stdout >>log"), 0) << said;
  EXPECT_TRUE(file("log").starts_with("earlier\n")) << file("log");
  EXPECT_NE(file("log").find("\"command\": \"generate\""), std::string::npos);
  EXPECT_TRUE(fs::is_symlink("/dev/stdout"));
  EXPECT_EQ(n_left(), 0);
}

TEST_F(Faults, AFileOverTheLimitOfTheShellIsSaid) {
  // A file beyond one block of 512 bytes.
  EXPECT_EQ(shell("ulimit -f 1\n" + generate + "--json r.json >/dev/null"), 1);
  EXPECT_TRUE(said.ends_with(
      "sluice: r.json: cannot be written: File too large (hint: the shell's limit on the size of "
      "files (ulimit -f) is in force)\n"))
      << said;
  EXPECT_FALSE(fs::exists(out.path() / "r.json"));
  EXPECT_EQ(n_left(), 0);
}

// Said before the work.
TEST_F(Faults, OutputsThatCannotBeWrittenAreRefusedFirst) {
  out.write("kept.json", "mine");
  fs::permissions(out.path() / "kept.json", fs::perms::owner_read);
  fs::create_symlink("loop.json", out.path() / "loop.json");
  fs::create_symlink("none/x.json", out.path() / "ahead.json");
  const std::string eval = "sluice eval " + model + "-f missing.txt ";
  EXPECT_EQ(shell(eval + "--json kept.json"), 1);
  expect_said(
      "kept.json: cannot be written: Permission denied (hint: check the permissions of the file "
      "and its folder, or give another name)");
  EXPECT_EQ(file("kept.json"), "mine");
  EXPECT_EQ(shell(eval + "--json loop.json"), 1);
  expect_said(
      "loop.json: cannot be written: Too many levels of symbolic links (hint: the link leads to "
      "itself)");
  EXPECT_EQ(shell(eval + "--html ahead.json"), 1);
  expect_said(
      "ahead.json: cannot be written: No such file or directory (hint: is the folder "
      "there?)");
  EXPECT_EQ(shell(eval + "--json ."), 1);
  expect_said(".: cannot be written: Is a directory (hint: give the name of a file)");
}

TEST_F(Faults, HardLinksAndModesOfOutputsStay) {
  out.write("a.json", "old");
  fs::create_hard_link(out.path() / "a.json", out.path() / "b.json");
  EXPECT_EQ(shell(generate + "--json a.json >/dev/null"), 0) << said;
  EXPECT_TRUE(is_results("b.json"));
  EXPECT_EQ(shell("umask 077\n" + generate + "--json c.json >/dev/null"), 0) << said;
  EXPECT_EQ(fs::status(out.path() / "c.json").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Faults, AModelCutShortWhileItIsMappedIsNamed) {
  const ModelFolder mapped("llama");
  mapped.set_config("max_position_embeddings", 512);
  Terminal terminal({"chat", "-m", mapped.path(), "--chat-format", "chatml", "--ignore-eos", "-n",
                     "4", "-t", "1"});
  ASSERT_TRUE(terminal.wait_for("> "));
  // Token tables are read from the map.
  fs::resize_file(mapped.file("model.safetensors"), 0);
  terminal.type("abc\n");
  ASSERT_TRUE(terminal.wait_for("model.safetensors: became shorter, or its disk failed"));
  EXPECT_EQ(terminal.wait_for_end(), 1) << terminal.shown();
}

TEST_F(Faults, APipeForMeasurementsIsRefused) {
  ASSERT_EQ(::mkfifo((out.path() / "pipe").c_str(), 0600), 0);
  out.write("text.txt", letter_text(4000));
  EXPECT_EQ(shell("sluice tune " + model +
                  "-f text.txt --max-kl 0.1 -o plan.json --measurements pipe --quiet"),
            1);
  EXPECT_NE(said.find("pipe: is not a regular file"), std::string::npos) << said;
}

TEST_F(Faults, LimitsOfTheShellAreSaid) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes terabytes of address space";
  // Stacks of 4096 threads do not fit.
  EXPECT_EQ(shell("ulimit -v 4000000\n" + generate + "-t 4096"), 1);
  expect_said(
      "4096 threads cannot be started: Resource temporarily unavailable (hint: take fewer (-t), or "
      "raise the limits on processes and memory (ulimit -u, -v))");
  // Neither hangs nor dies where there is hardly any memory.
  for (const char* limit : {"100000", "200000", "400000", "755000", "900000"}) {
    const std::string limited = "ulimit -v " + std::string(limit) + "\n";
    EXPECT_EQ(shell(limited + "sluice --version >/dev/null"), 0) << limit << said;
    const int code = shell(limited + "timeout 60 " + "'" + program_path() + "' calibrate " + model +
                           "-f missing.txt --rank 4 -o b.safetensors -t 1");
    EXPECT_EQ(code, 1) << limit << said;
    EXPECT_TRUE(said.starts_with("sluice: ")) << said;
  }
}

}  // namespace
}  // namespace sluice::impl
