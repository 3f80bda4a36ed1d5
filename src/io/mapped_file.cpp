#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/quote.h"

namespace sluice::impl {
namespace {

class InputDescriptor {
 public:
  explicit InputDescriptor(int fd) : fd_(fd) {}
  ~InputDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  InputDescriptor(InputDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  InputDescriptor(const InputDescriptor&) = delete;
  InputDescriptor& operator=(const InputDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string open_hint(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "check the spelling of the path";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and of the folders above it";
    case EMFILE:
    case ENFILE:
      return "raise the limit on open files (ulimit -n)";
    case ENOMEM:
      return "raise the limit on memory (ulimit -v), or free some";
    default:
      return "is the path right?";
  }
}

[[noreturn]] void fail_os(const std::filesystem::path& path, const char* verb, int error) {
  throw Error(path_label(path) + ": cannot " + verb + ": " + std::generic_category().message(error),
              open_hint(error));
}

struct OpenFile {
  InputDescriptor file;
  size_t size;
};

OpenFile open_regular(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; regular files ignore it.
  OpenFile opened{InputDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), 0};
  if (opened.file.get() < 0) fail_os(path, "open", errno);
  struct stat info {};
  if (::fstat(opened.file.get(), &info) != 0) fail_os(path, "stat", errno);
  if (S_ISDIR(info.st_mode))
    throw Error(path_label(path) + ": is a directory, expected a file",
                "name a file inside the directory");
  if (!S_ISREG(info.st_mode))
    throw Error(path_label(path) + ": is not a regular file",
                "pipes and devices cannot be mapped; copy the data to a file first");
  opened.size = static_cast<size_t>(info.st_size);
  return opened;
}

// Mapped files, for mapped_path_at.
struct MappingSlot {
  std::atomic<bool> taken = false;
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<const char*> label = nullptr;
};
std::array<MappingSlot, 1024> g_mappings;

void list_mapping(std::span<const std::byte> bytes, const char* label) {
  for (MappingSlot& slot : g_mappings) {
    if (slot.taken.exchange(true)) continue;
    slot.begin = reinterpret_cast<uintptr_t>(bytes.data());
    slot.label = label;
    slot.end = slot.begin + bytes.size();  // last: an empty range has no addresses
    return;
  }
}

void unlist_mapping(const std::byte* data) {
  for (MappingSlot& slot : g_mappings) {
    if (slot.begin != reinterpret_cast<uintptr_t>(data)) continue;
    slot.end = 0;
    slot.begin = 0;
    slot.taken = false;
    return;
  }
}

}  // namespace

const char* mapped_path_at(const void* address) noexcept {
  // The last page of a file reaches past its end.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const MappingSlot& slot : g_mappings)
    if (at >= slot.begin && slot.end != 0 && at < (slot.end + page - 1) / page * page)
      return slot.label;
  return nullptr;
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const OpenFile opened = open_regular(path);
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->path_ = path;
  mapped->label_ = path_label(path);
  if (opened.size == 0) return mapped;  // mmap refuses a length of zero
  void* data = ::mmap(nullptr, opened.size, PROT_READ, MAP_PRIVATE, opened.file.get(), 0);
  if (data == MAP_FAILED) fail_os(path, "map", errno);
  mapped->data_ = static_cast<const std::byte*>(data);
  mapped->size_ = opened.size;
  list_mapping(mapped->bytes(), mapped->label_.c_str());
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  unlist_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_text_file(const std::filesystem::path& path, size_t limit) {
  const OpenFile opened = open_regular(path);
  if (opened.size > limit)
    throw Error(path_label(path) + ": is " + std::to_string(opened.size) +
                    " bytes long, expected at most " + std::to_string(limit),
                "is this the right file?");
  std::string text(opened.size, '\0');
  size_t n_read = 0;
  while (n_read < text.size()) {
    const ssize_t n = ::read(opened.file.get(), text.data() + n_read, text.size() - n_read);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_os(path, "read", errno);
    if (n == 0) break;  // it became shorter
    n_read += static_cast<size_t>(n);
  }
  text.resize(n_read);
  return text;
}

void check_text(std::string_view text, const std::filesystem::path& path) {
  if (const size_t at = text.find('\0'); at != text.npos)
    throw Error(path_label(path) + ": is no text in UTF-8: byte " + std::to_string(at) + " is 0",
                "convert UTF-16 with iconv -f UTF-16 -t UTF-8");
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
