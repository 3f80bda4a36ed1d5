// What the machine around the program is like: full disks, folders that are read only, other runs,
// no home, no locale, narrow terminals, clocks.

#include <unistd.h>

#include <regex>

#include "cli/faults_fixture.h"
#include "cli/terminal.h"

namespace sluice::impl {
namespace {

using namespace test;
namespace fs = std::filesystem;

class Surroundings : public Faults {
 protected:
  // Runs lines of a shell that may mount: in a namespace of its own, which ends with it.
  int mounting_shell(const std::string& lines) {
    return shell(enter() + " sh -e <<'END'\nsluice() { '" + program_path() + "' \"$@\"; }\n" +
                 lines + "\nEND");
  }
  bool may_mount() { return mounting_shell("mount -t tmpfs none /mnt") == 0; }

 private:
  static std::string enter() {
    return ::geteuid() == 0 ? "unshare --mount" : "unshare --mount --map-root-user";
  }
};

TEST_F(Surroundings, AFullDiskIsSaidAndTheOldFileStays) {
  if (!may_mount()) GTEST_SKIP() << "nothing may be mounted here";
  fs::create_directory(out.path() / "disk");
  const std::string disk =
      "mount -t tmpfs -o size=64k none disk\necho old >disk/r.json\n"
      "cat /dev/zero >disk/fill 2>/dev/null || true\n";
  const std::string after =
      " >/dev/null || code=$?\ncat disk/r.json >content\nls -A disk >files\n"
      "exit $code\n";
  EXPECT_EQ(mounting_shell(disk + "code=0\n" + generate + "--json disk/r.json" + after), 1);
  EXPECT_TRUE(
      said.ends_with("sluice: disk/r.json: cannot be written: No space left on device (hint: "
                     "make room, or give a name on another disk)\n"))
      << said;
  EXPECT_EQ(file("content"), "old\n");
  EXPECT_EQ(file("files"), "fill\nr.json\n");
  // A new file.
  EXPECT_EQ(mounting_shell(disk + "code=0\n" + generate + "--json disk/new.json" + after), 1);
  EXPECT_NE(said.find("disk/new.json: cannot be written: No space left"), std::string::npos)
      << said;
  EXPECT_EQ(file("files"), "fill\nr.json\n");
}

TEST_F(Surroundings, AReadOnlyFolderIsRefusedBeforeTheWorkAndModelsAreReadThere) {
  if (!may_mount()) GTEST_SKIP() << "nothing may be mounted here";
  const std::string at = "'" + folder.path() + "'";
  const std::string read_only =
      "mount --bind " + at + " " + at + "\nmount -o remount,bind,ro " + at + "\n";
  EXPECT_EQ(mounting_shell(read_only + "sluice eval " + model + "-f missing.txt --json " + at +
                           "/r.json"),
            1);
  EXPECT_NE(said.find("r.json: cannot be written: Read-only file system (hint: check the "
                      "permissions of the file and its folder, or give another name)"),
            std::string::npos)
      << said;
  EXPECT_EQ(mounting_shell(read_only + generate + "--json r.json >/dev/null"), 0) << said;
  EXPECT_TRUE(is_results("r.json"));
}

TEST_F(Surroundings, TwoRunsOnOneFileLeaveOneOfThem) {
  const std::string run = "sluice generate " + model + "-p abab --quiet --json r.json ";
  EXPECT_EQ(shell(run + "-n 3 >/dev/null &\nfirst=$!\n" + run +
                  "-n 5 >/dev/null\ncode=$?\nwait $first && exit $code"),
            0)
      << said;
  ASSERT_TRUE(is_results("r.json"));
  const auto n = read_results((out.path() / "r.json").string()).at("settings").at("predict");
  EXPECT_TRUE(n == 3 || n == 5) << n;
  EXPECT_EQ(n_left(), 0);
}

TEST_F(Surroundings, AModelReplacedWhileItIsReadGoesOnAsItWas) {
  const ModelFolder mapped("llama");
  mapped.set_config("max_position_embeddings", 512);
  const Args args{"chat", "-m", mapped.path(), "--chat-format", "chatml", "--ignore-eos", "-n", "4",
                  "-t",   "1"};
  const auto second_answer = [&](const std::function<void()>& between) {
    Terminal terminal(args);
    EXPECT_TRUE(terminal.wait_for("> "));
    terminal.type("abc\n");
    EXPECT_TRUE(terminal.wait_for("4 answered at "));
    EXPECT_TRUE(terminal.wait_for("> "));
    between();
    terminal.type("def\n");
    EXPECT_TRUE(terminal.wait_for("4 answered at "));
    terminal.type("/quit\n");
    EXPECT_EQ(terminal.wait_for_end(), 0) << terminal.shown();
    const std::string after = terminal.shown().substr(terminal.shown().find("def\r\n") + 5);
    return after.substr(0, after.find("\r\n"));
  };
  const std::string expected = second_answer([] {});
  const std::string found = second_answer([&] {
    mapped.write("other.safetensors", "not a model");
    fs::rename(mapped.file("other.safetensors"), mapped.file("model.safetensors"));
  });
  EXPECT_EQ(found, expected);
  EXPECT_EQ(read_bytes(mapped.file("model.safetensors")), "not a model");
}

TEST_F(Surroundings, NeitherHomeNorLocaleIsNeeded) {
  EXPECT_EQ(shell(generate + "--json a.json >a"), 0) << said;
  EXPECT_EQ(shell("env -i ASAN_OPTIONS=$ASAN_OPTIONS LANG=C '" + program_path() + "'" +
                  generate.substr(6) + "--json b.json >b"),
            0)
      << said;
  EXPECT_EQ(shell("env -i ASAN_OPTIONS=$ASAN_OPTIONS LC_ALL=xx_XX.none HOME=/nonexistent '" +
                  program_path() + "'" + generate.substr(6) + "--json c.json >c"),
            0)
      << said;
  EXPECT_EQ(file("a"), file("b"));
  EXPECT_EQ(file("a"), file("c"));
}

TEST_F(Surroundings, ProgressFitsANarrowTerminal) {
  const std::string text = out.write("text.txt", letter_text(2'000'000)).string();
  Terminal terminal({"eval", "-m", folder.path(), "-f", text}, 20);
  ASSERT_TRUE(terminal.wait_for("left"));
  ASSERT_TRUE(terminal.wait_for("left"));
  const std::string shown = terminal.shown();
  const std::regex bar("\r\x1b\\[K([^\r\x1b\n]*)");
  for (std::sregex_iterator one(shown.begin(), shown.end(), bar), end; one != end; ++one)
    if ((*one)[1].str().find('%') != std::string::npos) {
      EXPECT_LT((*one)[1].length(), 20) << (*one)[1];
    }
}

TEST_F(Surroundings, AClockThatGoesBackwardsChangesNothing) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's runtime has to be loaded first";
  const std::string library = [] {
    for (const auto& entry : fs::directory_iterator("/usr/lib"))
      if (fs::exists(entry.path() / "faketime/libfaketime.so.1"))
        return (entry.path() / "faketime/libfaketime.so.1").string();
    return std::string();
  }();
  if (library.empty()) GTEST_SKIP() << "no libfaketime here";
  // Every reading of the time of day is a minute before the last one.
  const std::string backwards = "export LD_PRELOAD='" + library +
                                "' FAKETIME='@2026-01-01 12:00:00 i-60' DONT_FAKE_MONOTONIC=1\n";
  EXPECT_EQ(shell(generate + "--json a.json >a"), 0) << said;
  EXPECT_EQ(shell(backwards + generate + "--json b.json >b"), 0) << said;
  EXPECT_EQ(file("a"), file("b"));
  const auto run = read_results((out.path() / "b.json").string()).at("runs").at(0);
  EXPECT_GT(run.at("prefill_tokens_per_s"), 0);
}

}  // namespace
}  // namespace sluice::impl
