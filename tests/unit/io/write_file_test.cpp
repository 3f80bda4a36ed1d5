// What becomes of what is at a path already when a file is written there.

#include "io/write_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/unfinished_files.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

namespace fs = std::filesystem;

int64_t n_files(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(WriteFile, KeepsItsModeAndLeavesOthersAlone) {
  const TempDir dir;
  const fs::path file = dir.write("a.json", "old"), other = dir.write("a.json.part", "mine");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  check_writable(file);
  write_file(file, "new");
  EXPECT_EQ(read_bytes(file), "new");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(read_bytes(other), "mine");
  EXPECT_EQ(n_files(dir.path()), 2);
}

TEST(WriteFile, AnOpenDescriptorIsWrittenIntoAsItIs) {
  const TempDir dir;
  const fs::path file = dir.write("log", "old\n");
  const int append = ::open(file.c_str(), O_WRONLY | O_APPEND);
  const int read_only = ::open(file.c_str(), O_RDONLY);
  const std::string path = "/dev/fd/" + std::to_string(append);
  check_writable(path);
  write_file(path, "new\n");
  write_file(path, "more\n");
  EXPECT_EQ(read_bytes(file), "old\nnew\nmore\n");
  EXPECT_EQ(n_files(dir.path()), 1);
  EXPECT_THROW(check_writable("/dev/fd/" + std::to_string(read_only)), Error);
  EXPECT_THROW(write_file("/dev/fd/" + std::to_string(read_only), "new"), Error);
  ::close(append);
  ::close(read_only);
}

TEST(WriteFile, FollowsLinks) {
  const TempDir dir;
  const fs::path file = dir.write("there/a.json", "old"), link = dir.path() / "link";
  fs::create_symlink("there/a.json", link);
  check_writable(link);
  write_file(link, "new");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_bytes(file), "new");

  const fs::path ahead = dir.path() / "ahead";
  fs::create_symlink("there/b.json", ahead);
  check_writable(ahead);
  write_file(ahead, "first");
  EXPECT_TRUE(fs::is_symlink(ahead));
  EXPECT_EQ(read_bytes(dir.path() / "there/b.json"), "first");
  EXPECT_EQ(n_files(dir.path() / "there"), 2);
}

TEST(WriteFile, ADeviceStaysOne) {
  check_writable("/dev/null");
  write_file("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  if (fs::exists("/dev/full")) {
    EXPECT_THROW(write_file("/dev/full", "lost"), Error);
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
  }
  const TempDir dir;
  const fs::path pipe = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  check_writable(pipe);  // without a reader, and without waiting for one
  EXPECT_TRUE(fs::is_fifo(pipe));
}

// By whatever path leads to it.
TEST(WriteFile, NothingIsRenamedOverADescriptor) {
  const TempDir dir;
  const fs::path log = dir.write("log", "old\n"), link = dir.path() / "link";
  const int append = ::open(log.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  fs::create_symlink("/proc/self/fd/" + std::to_string(append), link);
  for (const fs::path& path : {fs::path("/proc/self/fd/" + std::to_string(append)), link}) {
    check_writable(path);
    write_file(path, "new\n");
  }
  EXPECT_EQ(read_bytes(log), "old\nnew\nnew\n");
  EXPECT_TRUE(fs::is_symlink(link));
  // One whose file has no name any more.
  fs::remove(log);
  write_file("/dev/fd/" + std::to_string(append), "gone\n");
  EXPECT_EQ(n_files(dir.path()), 1);
  ::close(append);
  EXPECT_THROW(check_writable("/dev/fd/" + std::to_string(append)), Error);
}

TEST(WriteFile, AReadOnlyFileStays) {
  const TempDir dir;
  const fs::path file = dir.write("a.json", "old");
  fs::permissions(file, fs::perms::owner_read | fs::perms::group_read);
  expect_error([&] { check_writable(file); }, {"a.json: cannot be written: Permission denied"});
  EXPECT_THROW(write_file(file, "new"), Error);
  EXPECT_EQ(read_bytes(file), "old");
}

TEST(WriteFile, HardLinksStayOneFile) {
  const TempDir dir;
  const fs::path file = dir.write("a.json", "old, and longer"), other = dir.path() / "b.json";
  fs::create_hard_link(file, other);
  check_writable(file);
  write_file(file, "new");
  EXPECT_EQ(read_bytes(other), "new");
  EXPECT_EQ(fs::hard_link_count(file), 2u);
}

TEST(WriteFile, TheOwnerStays) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const TempDir dir;
  const fs::path file = dir.write("a.json", "old");
  ASSERT_EQ(::chown(file.c_str(), 1234, 2345), 0);
  write_file(file, "new");
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 1234u);
  EXPECT_EQ(info.st_gid, 2345u);
  EXPECT_EQ(read_bytes(file), "new");
}

TEST(WriteFile, ANewFileHasTheModeOfTheUmask) {
  const TempDir dir;
  const mode_t before = ::umask(027);
  write_file(dir.path() / "a.json", "new");
  ::umask(before);
  using fs::perms;
  EXPECT_EQ(fs::status(dir.path() / "a.json").permissions(),
            perms::owner_read | perms::owner_write | perms::group_read);
}

TEST(WriteFile, ALongNameIsWritten) {
  const TempDir dir;
  const fs::path file = dir.path() / std::string(255, 'a');  // the longest that Linux takes
  check_writable(file);
  write_file(file, "new");
  EXPECT_EQ(read_bytes(file), "new");
}

TEST(WriteFile, ReasonsAreGiven) {
  const TempDir dir;
  fs::create_symlink("loop", dir.path() / "loop");
  fs::create_symlink("none/a.json", dir.path() / "ahead");
  const auto refused = [](const fs::path& path, const std::string& reason) {
    expect_error([&] { check_writable(path); }, {"cannot be written: " + reason});
    expect_error([&] { write_file(path, "x"); }, {"cannot be written: " + reason});
  };
  refused(dir.path() / "loop", "Too many levels of symbolic links");
  refused(dir.path() / "ahead", "No such file or directory");
  refused(dir.path() / "none/a.json", "No such file or directory");
  refused(dir.path(), "Is a directory");
  refused(dir.write("file", "") / "a.json", "Not a directory");
  refused("/dev/fd/12345", "Bad file descriptor");
  if (fs::exists("/dev/full"))
    expect_error([] { write_file("/dev/full", "x"); }, {"No space left on device"});
}

TEST(WriteFile, AFailureLeavesTheOldFileAndNothingElse) {
  const TempDir dir;
  const fs::path file = dir.write("a.json", "old");
  const auto broken = [](std::ostream& stream) {
    stream << "half";
    throw Error("no more");
  };
  EXPECT_THROW(write_file(file, broken), Error);
  EXPECT_EQ(read_bytes(file), "old");
  EXPECT_EQ(n_files(dir.path()), 1);
}

// What a handler of SIGTERM does while a file is being written.
TEST(WriteFile, AnUnfinishedFileCanBeRemoved) {
  const TempDir dir;
  const fs::path file = dir.write("a.json", "old");
  const auto interrupted = [&](std::ostream& stream) {
    stream << std::string(100'000, 'x');
    EXPECT_EQ(n_files(dir.path()), 2);
    remove_unfinished_files();
    EXPECT_EQ(n_files(dir.path()), 1);
  };
  EXPECT_THROW(write_file(file, interrupted), Error);
  EXPECT_EQ(read_bytes(file), "old");
  write_file(file, "new");
  remove_unfinished_files();
  EXPECT_EQ(read_bytes(file), "new");
}

TEST(WriteFile, RefusesFolders) {
  const TempDir dir;
  EXPECT_THROW(check_writable(dir.path()), Error);
  EXPECT_THROW(write_file(dir.path(), "x"), Error);
  EXPECT_THROW(check_writable(dir.path() / "none/a.json"), Error);
  EXPECT_THROW(write_file(dir.path() / "none/a.json", "x"), Error);
}

}  // namespace
}  // namespace sluice::impl::test
