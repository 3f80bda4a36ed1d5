#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"
#include "core/quote.h"

namespace sluice::impl {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string open_hint(int error) {
  if (error == ENOENT || error == ENOTDIR) return "check the spelling of the path";
  if (error == EACCES || error == EPERM) return "check the permissions of the file";
  return "is the path right?";
}

[[noreturn]] void fail_os(const std::filesystem::path& path, const char* verb, int error) {
  throw Error(path_label(path) + ": cannot " + verb + ": " + std::generic_category().message(error),
              open_hint(error));
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; regular files ignore it.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail_os(path, "open", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail_os(path, "stat", errno);
  if (S_ISDIR(info.st_mode))
    throw Error(path_label(path) + ": is a directory, expected a file",
                "name a file inside the directory");
  if (!S_ISREG(info.st_mode))
    throw Error(path_label(path) + ": is not a regular file",
                "pipes and devices cannot be mapped; copy the data to a file first");

  std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->path_ = path;
  if (info.st_size == 0) return mapped;  // mmap refuses a length of zero
  const auto size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) fail_os(path, "map", errno);
  mapped->data_ = static_cast<const std::byte*>(data);
  mapped->size_ = size;
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_text_file(const std::filesystem::path& path, size_t limit) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  if (bytes.size() > limit)
    throw Error(path_label(path) + ": is " + std::to_string(bytes.size()) +
                    " bytes long, expected at most " + std::to_string(limit),
                "is this the right file?");
  if (bytes.empty()) return {};
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void release_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + bytes.size()) / page * page;
  // A refusal costs memory, not correctness.
  if (first < last)
    madvise(const_cast<std::byte*>(bytes.data()) + (first - begin), last - first, MADV_DONTNEED);
}

}  // namespace sluice::impl
