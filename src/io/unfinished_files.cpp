#include "io/unfinished_files.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>

namespace sluice::impl {
namespace {

constexpr size_t kSlots = 16;

struct Slot {
  std::atomic<bool> taken = false;
  std::atomic<bool> filled = false;  // the path is complete
  std::array<char, 4096> path{};
};

std::array<Slot, kSlots> g_slots;

}  // namespace

UnfinishedFile::UnfinishedFile(const std::filesystem::path& path) : slot_(0) {
  const std::string& name = path.native();
  while (slot_ < kSlots && g_slots[slot_].taken.exchange(true)) ++slot_;
  if (slot_ == kSlots) return;
  Slot& slot = g_slots[slot_];
  if (name.size() >= slot.path.size()) return;
  std::memcpy(slot.path.data(), name.c_str(), name.size() + 1);
  slot.filled = true;
}

UnfinishedFile::~UnfinishedFile() {
  if (slot_ == kSlots) return;
  g_slots[slot_].filled = false;
  g_slots[slot_].taken = false;
}

void remove_unfinished_files() noexcept {
  for (Slot& slot : g_slots)
    if (slot.filled) ::unlink(slot.path.data());
}

}  // namespace sluice::impl
