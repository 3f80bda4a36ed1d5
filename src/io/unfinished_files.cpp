#include "io/unfinished_files.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>

namespace sluice::impl {
namespace {

constexpr size_t kSlots = 16;

struct FileSlot {
  std::atomic<bool> taken = false;
  std::atomic<bool> filled = false;  // the path is complete
  std::array<char, 4096> path{};
};

std::array<FileSlot, kSlots> g_files;

}  // namespace

UnfinishedFile::UnfinishedFile(const std::filesystem::path& path) : slot_(0) {
  const std::string& name = path.native();
  while (slot_ < kSlots && g_files[slot_].taken.exchange(true)) ++slot_;
  if (slot_ == kSlots) return;
  FileSlot& slot = g_files[slot_];
  if (name.size() >= slot.path.size()) return;
  std::memcpy(slot.path.data(), name.c_str(), name.size() + 1);
  slot.filled = true;
}

UnfinishedFile::~UnfinishedFile() {
  if (slot_ == kSlots) return;
  g_files[slot_].filled = false;
  g_files[slot_].taken = false;
}

void remove_unfinished_files() noexcept {
  for (FileSlot& slot : g_files)
    if (slot.filled) ::unlink(slot.path.data());
}

}  // namespace sluice::impl
