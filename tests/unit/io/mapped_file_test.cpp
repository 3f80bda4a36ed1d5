#include "io/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using test::expect_error;
using test::TempDir;

TEST(MappedFile, HoldsTheBytesOfTheFile) {
  const TempDir dir;
  const auto file = MappedFile::open(dir.write("a.bin", "hello"));
  ASSERT_EQ(file->bytes().size(), 5u);
  EXPECT_EQ(std::memcmp(file->bytes().data(), "hello", 5), 0);
  EXPECT_EQ(file->path(), dir.path() / "a.bin");
}

TEST(MappedFile, BytesOutliveTheRemovalOfTheFile) {
  const TempDir dir;
  const auto path = dir.write("a.bin", "hello");
  const auto file = MappedFile::open(path);
  std::filesystem::remove(path);
  EXPECT_EQ(std::memcmp(file->bytes().data(), "hello", 5), 0);
}

TEST(MappedFile, EmptyFileHasNoBytes) {
  const TempDir dir;
  EXPECT_TRUE(MappedFile::open(dir.write("empty", ""))->bytes().empty());
}

TEST(MappedFile, MissingFileIsNamedWithTheReason) {
  const TempDir dir;
  expect_error([&] { MappedFile::open(dir.path() / "none.bin"); },
               {"none.bin: cannot open: No such file or directory"});
}

TEST(MappedFile, DirectoryIsRefused) {
  const TempDir dir;
  expect_error([&] { MappedFile::open(dir.path()); }, {"is a directory, expected a file"});
}

TEST(MappedFile, FifoIsRefusedWithoutWaitingForAWriter) {
  const TempDir dir;
  const auto path = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_error([&] { MappedFile::open(path); }, {"pipe: is not a regular file"});
}

TEST(MappedFile, UnreadableFileIsNamedWithTheReason) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every file";
  const TempDir dir;
  const auto path = dir.write("secret.bin", "x");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  expect_error([&] { MappedFile::open(path); }, {"secret.bin: cannot open: Permission denied"});
}

TEST(MappedFile, ControlCharactersOfAPathStayOnOneLine) {
  const TempDir dir;
  expect_error([&] { MappedFile::open(dir.path() / "a\nb"); }, {"a\\x0ab: cannot open"});
}

TEST(MappedFile, IsFoundByItsAddresses) {
  const TempDir dir;
  const auto path = dir.write("a.bin", "hello");
  const char here = 0;
  EXPECT_EQ(mapped_path_at(&here), nullptr);
  const std::byte* address = nullptr;
  {
    const auto file = MappedFile::open(path), other = MappedFile::open(dir.write("b.bin", "b"));
    address = file->bytes().data();
    EXPECT_STREQ(mapped_path_at(address + 4), path.c_str());
    EXPECT_STREQ(mapped_path_at(other->bytes().data()), (dir.path() / "b.bin").c_str());
  }
  EXPECT_EQ(mapped_path_at(address), nullptr);
}

TEST(ReadTextFile, BytesOfZeroAreNoText) {
  check_text("caf\xc3\xa9 \xff", "a.txt");
  expect_error([] { check_text(std::string_view("a\0b", 3), "a.txt"); },
               {"a.txt: is no text in UTF-8: byte 1 is 0"});
}

TEST(ReadTextFile, ReturnsTheWholeText) {
  const TempDir dir;
  EXPECT_EQ(read_text_file(dir.write("a.txt", "two\nlines\n"), 10), "two\nlines\n");
  EXPECT_EQ(read_text_file(dir.write("empty.txt", ""), 10), "");
}

TEST(ReadTextFile, RefusesMoreThanTheLimit) {
  const TempDir dir;
  const auto path = dir.write("a.txt", "0123456789");
  expect_error([&] { read_text_file(path, 9); }, {"is 10 bytes long, expected at most 9"});
}

}  // namespace
}  // namespace sluice::impl
