// A file mapped read-only into memory.

#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sluice::impl {

class MappedFile {
 public:
  // Throws Error naming the path when it cannot be opened or is not a regular file.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  std::string label_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The file that is mapped at an address, as messages name it; nullptr for other addresses. Reading
// past the end of a file that became shorter raises SIGBUS, whose handler may call this. Knows the
// first 1024 files.
const char* mapped_path_at(const void* address) noexcept;

// Gives back the memory behind whole pages inside `bytes`, which must be part of a MappedFile;
// reading them again fetches them from the file again.
void release_pages(std::span<const std::byte> bytes);

// A whole text file, refused above `limit` bytes. It is read, not mapped.
std::string read_text_file(const std::filesystem::path& path, size_t limit);

// Refuses what has bytes of 0: UTF-16, and files that are no text.
void check_text(std::string_view text, const std::filesystem::path& path);

}  // namespace sluice::impl
