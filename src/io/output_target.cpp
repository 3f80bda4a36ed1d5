#include "io/output_target.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>

#include "core/error.h"
#include "core/quote.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kAnyWriteBit = S_IWUSR | S_IWGRP | S_IWOTH;

std::optional<int> number_of(const std::string& name) {
  int number = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data(), end, number);
  if (error != std::errc() || rest != end || number < 0) return std::nullopt;
  return number;
}

// Links in the folders of a path resolved, the last name as it is.
fs::path in_real_folder(const fs::path& path, std::error_code& error) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  return fs::canonical(folder, error) / path.filename();
}

// The N of /dev/fd/N, by any path that leads there.
std::optional<int> descriptor_of(const fs::path& path) {
  std::error_code no_proc;
  const fs::path folder = path.parent_path(), ours = fs::canonical("/proc/self/fd", no_proc);
  const bool is_ours = folder == "/dev/fd" || (!no_proc && folder == ours);
  return is_ours ? number_of(path.filename().string()) : std::nullopt;
}

bool is_of_the_system(const fs::path& path) {
  const std::string& name = path.native();
  return name.starts_with("/proc/") ||
         (name.starts_with("/dev/") && !name.starts_with("/dev/shm/"));
}

std::string hint_for(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "is the folder there?";
    case EISDIR:
      return "give the name of a file";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check the permissions of the file and its folder, or give another name";
    case ENOSPC:
    case EDQUOT:
      return "make room, or give a name on another disk";
    case EFBIG:
      return "the shell's limit on the size of files (ulimit -f) is in force";
    case ELOOP:
      return "the link leads to itself";
    default:
      return "is the folder there, writable and not full?";
  }
}

void check_descriptor(const fs::path& path, int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0) fail_writing(path, errno);
  if ((flags & O_ACCMODE) == O_RDONLY) fail_writing(path, EACCES);
}

// `target.path` is no link.
void examine(OutputTarget& target, const fs::path& path) {
  struct stat info {};
  if (::lstat(target.path.c_str(), &info) != 0) {
    if (errno != ENOENT) fail_writing(path, errno);
    return;
  }
  target.exists = true;
  if (S_ISDIR(info.st_mode)) fail_writing(path, EISDIR);
  // Root may write to every file, but a file without a bit for writing was meant to stay.
  const bool read_only = S_ISREG(info.st_mode) && (info.st_mode & kAnyWriteBit) == 0;
  if (read_only || ::access(target.path.c_str(), W_OK) != 0)
    fail_writing(path, read_only ? EACCES : errno);
  if (!S_ISREG(info.st_mode) || info.st_nlink > 1 || is_of_the_system(target.path))
    target.kind = OutputTarget::Kind::kInPlace;
}

}  // namespace

void fail_writing(const fs::path& path, int error) {
  throw Error(path_label(path) + ": cannot be written: " + std::generic_category().message(error),
              hint_for(error));
}

OutputTarget output_target(const fs::path& path) {
  constexpr int kMostSteps = 80;  // two to a link; the kernel follows 40
  OutputTarget target;
  target.path = path;
  for (int i = 0; i < kMostSteps; ++i) {
    if (const auto descriptor = descriptor_of(target.path)) {
      check_descriptor(path, *descriptor);
      target.kind = OutputTarget::Kind::kDescriptor;
      target.descriptor = *descriptor;
      return target;
    }
    std::error_code error;
    const fs::path real = in_real_folder(target.path, error);
    if (error) fail_writing(path, error.value());
    const bool is_real = target.path == real;
    target.path = real;
    if (!is_real) continue;  // its folder may be that of descriptors
    const fs::path next = fs::read_symlink(real, error);
    if (error) {
      examine(target, path);
      return target;
    }
    target.path = real.parent_path() / next;
  }
  fail_writing(path, ELOOP);
}

}  // namespace sluice::impl
