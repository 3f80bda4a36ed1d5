// The names of files that are being written. A program that is told to stop removes them first.

#pragma once

#include <cstddef>
#include <filesystem>

namespace sluice::impl {

// Lists a file for as long as it lives. Past 16 files at once, and past paths of 4095 bytes, a file
// is not listed.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::filesystem::path& path);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

 private:
  size_t slot_;
};

// Removes the files that are listed. A signal handler may call it.
void remove_unfinished_files() noexcept;

}  // namespace sluice::impl
