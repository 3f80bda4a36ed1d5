// What becomes of what is at a path already when a file is written there.

#include "io/write_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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

TEST(WriteFile, RefusesFolders) {
  const TempDir dir;
  EXPECT_THROW(check_writable(dir.path()), Error);
  EXPECT_THROW(write_file(dir.path(), "x"), Error);
  EXPECT_THROW(check_writable(dir.path() / "none/a.json"), Error);
  EXPECT_THROW(write_file(dir.path() / "none/a.json", "x"), Error);
}

}  // namespace
}  // namespace sluice::impl::test
