// Sets that a layer in another process chose, and how they travel.

#pragma once

#include "backend/select.h"
#include "core/packed.h"

namespace sluice::impl {

// Of a token in one set: status and owner.
inline constexpr int64_t kPackedTokenBytes = 5;

// The tokens of `sets` from `first` on: their number, 8 bytes, and kPackedTokenBytes for each and
// each set.
void pack_sets(std::span<const TokenSet> sets, int64_t first, Bytes& out);

// Decides nothing: what it has came from pack_sets().
class ReceivedSelector final : public Selector {
 public:
  explicit ReceivedSelector(SelectorSpec spec);

  // The tokens that follow, from the front of `in`.
  void append(std::span<const std::byte>& in);
  void extend(const SelectArgs&) override { SLUICE_CHECK(false); }
  void reset() override;
  int64_t bytes() const override { return 0; }
};

}  // namespace sluice::impl
