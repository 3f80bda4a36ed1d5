// Sets that a layer in another process chose, and how they travel.

#pragma once

#include "backend/select.h"
#include "ranks/archive.h"

namespace sluice::impl {

// Of a token in one set: status and owner.
inline constexpr int64_t kPackedTokenBytes = 5;

// The tokens of `sets` from `first` on: for each set 16 bytes, and kPackedTokenBytes for each
// token.
void pack_sets(std::span<const TokenSet> sets, int64_t first, Packer& out);

// Decides nothing: what it has came from pack_sets().
class ReceivedSelector final : public Selector {
 public:
  explicit ReceivedSelector(SelectorSpec spec);

  // The tokens that follow.
  void append(Unpacker& in);
  void extend(const SelectArgs&) override { SLUICE_CHECK(false); }
  void reset() override;
  int64_t bytes() const override { return 0; }
};

}  // namespace sluice::impl
