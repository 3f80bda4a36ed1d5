#include "io/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <streambuf>
#include <string>
#include <utility>

#include "io/output_target.h"
#include "io/unfinished_files.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using Content = std::function<void(std::ostream&)>;

constexpr mode_t kNewMode = 0666;  // less the umask

class OutputDescriptor {
 public:
  explicit OutputDescriptor(int number) : number_(number) {}
  ~OutputDescriptor() { close(); }
  OutputDescriptor(OutputDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  OutputDescriptor(const OutputDescriptor&) = delete;
  OutputDescriptor& operator=(const OutputDescriptor&) = delete;

  int number() const { return number_; }
  bool close() {
    const int number = std::exchange(number_, -1);
    return number < 0 || ::close(number) == 0;
  }

 private:
  int number_;
};

// Remembers the first error, which a stream alone does not tell.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int descriptor) : descriptor_(descriptor) { reset(); }
  int error() const { return error_; }

 protected:
  int_type overflow(int_type c) override {
    if (sync() != 0) return traits_type::eof();
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    return sputc(traits_type::to_char_type(c));
  }
  int sync() override {
    std::string_view bytes(pbase(), static_cast<size_t>(pptr() - pbase()));
    while (error_ == 0 && !bytes.empty()) {
      const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        error_ = n < 0 ? errno : EIO;
      else
        bytes.remove_prefix(static_cast<size_t>(n));
    }
    reset();
    return error_ == 0 ? 0 : -1;
  }

 private:
  void reset() { setp(block_.data(), block_.data() + block_.size()); }

  int descriptor_;
  int error_ = 0;
  std::array<char, 65536> block_{};
};

// 0 or an errno.
int write_to(int descriptor, const Content& content) {
  DescriptorBuffer buffer(descriptor);
  std::ostream stream(&buffer);
  content(stream);
  stream.flush();
  if (buffer.error() != 0) return buffer.error();
  return stream.good() ? 0 : EIO;
}

// A new file in a folder, removed again unless it is renamed.
class NewFile {
 public:
  // Nothing, and an errno in `error`, where the folder takes none.
  static std::optional<NewFile> in(const fs::path& folder, int& error) {
    std::random_device random;
    for (int attempt = 0; attempt < 100; ++attempt) {
      fs::path path = folder / (".sluice-" + hex(random()) + hex(random()) + ".part");
      const int number =
          ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kNewMode);
      if (number >= 0) return NewFile(OutputDescriptor(number), std::move(path));
      error = errno;
      if (error != EEXIST) break;
    }
    return std::nullopt;
  }
  ~NewFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  NewFile(NewFile&& other) noexcept
      : file_(std::move(other.file_)),
        path_(std::exchange(other.path_, {})),
        listed_(std::move(other.listed_)) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int number() const { return file_.number(); }

  // Whether it now has the owner and the mode of `old`.
  bool take_owner_and_mode(const fs::path& old) const {
    struct stat wanted {
    }, own{};
    if (::stat(old.c_str(), &wanted) != 0 || ::fstat(number(), &own) != 0) return false;
    const bool same_owner = wanted.st_uid == own.st_uid && wanted.st_gid == own.st_gid;
    if (!same_owner && ::fchown(number(), wanted.st_uid, wanted.st_gid) != 0) return false;
    return ::fchmod(number(), wanted.st_mode & 0777) == 0;
  }

  // 0 or an errno. The bytes are on the disk before the name is theirs.
  int rename_to(const fs::path& path) {
    if (::fsync(number()) != 0 && errno != EINVAL) return errno;
    if (!file_.close() || ::rename(path_.c_str(), path.c_str()) != 0) return errno;
    path_.clear();
    return 0;
  }

 private:
  NewFile(OutputDescriptor file, fs::path path)
      : file_(std::move(file)),
        path_(std::move(path)),
        listed_(std::make_unique<UnfinishedFile>(path_)) {}

  static std::string hex(unsigned value) {
    std::string text;
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[value >> shift & 15];
    return text;
  }

  OutputDescriptor file_;
  fs::path path_;
  std::unique_ptr<UnfinishedFile> listed_;
};

// The file that will replace the target. Nothing where none can be made that has the owner and mode
// of the old one.
std::optional<NewFile> replacement_of(const OutputTarget& target, int& error) {
  std::optional<NewFile> made = NewFile::in(target.path.parent_path(), error);
  if (made && target.exists && !made->take_owner_and_mode(target.path)) return std::nullopt;
  return made;
}

void write_in_place(const OutputTarget& target, const fs::path& path, const Content& content) {
  OutputDescriptor file(::open(target.path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (file.number() < 0) fail_writing(path, errno);
  if (const int error = write_to(file.number(), content)) fail_writing(path, error);
  if (!file.close()) fail_writing(path, errno);
}

}  // namespace

void write_file(const fs::path& path, const Content& content) {
  const OutputTarget target = output_target(path);
  if (target.kind == OutputTarget::Kind::kDescriptor) {
    if (target.descriptor == STDOUT_FILENO) std::fflush(stdout);  // what was printed comes first
    if (const int error = write_to(target.descriptor, content)) fail_writing(path, error);
    return;
  }
  if (target.kind == OutputTarget::Kind::kInPlace) return write_in_place(target, path, content);
  int error = 0;
  std::optional<NewFile> file = replacement_of(target, error);
  if (!file && target.exists) return write_in_place(target, path, content);
  if (!file) fail_writing(path, error);
  error = write_to(file->number(), content);
  if (error == 0) error = file->rename_to(target.path);
  if (error != 0) fail_writing(path, error);
}

void write_file(const fs::path& path, std::string_view content) {
  write_file(path, [&](std::ostream& file) {
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
  });
}

void check_writable(const fs::path& path) {
  const OutputTarget target = output_target(path);
  // A file that exists can be written in place.
  if (target.kind != OutputTarget::Kind::kReplace || target.exists) return;
  int error = 0;
  if (!NewFile::in(target.path.parent_path(), error)) fail_writing(path, error);
}

}  // namespace sluice::impl
