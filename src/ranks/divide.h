// Work that consists of items (windows of a text, single changes of a plan), divided over ranks.

#pragma once

#include <optional>

#include "ranks/archive.h"
#include "ranks/communicator.h"

namespace sluice::impl {

// Item i is worked on by rank i mod size. Every rank gets the part that each item makes, in the
// order of items: what is summed from them has the same bits on any number of ranks.
//
// next(): goes on to the next item, false at the end; the same on every rank. work(): the Part of
// this item. use(Part): of every item.
//
// A round is one item for each rank, after which parts are gathered. So ranks wait for the slowest
// once a round, and a rank that fails is noticed before the next one. Ranks that do not count the
// same items in a round read other files: Error.
template <typename Part, typename Next, typename Work, typename Use>
void divide(Communicator& ranks, const Next& next, const Work& work, const Use& use) {
  if (ranks.size() == 1) {
    while (next()) use(work());
    return;
  }
  for (int n_items = ranks.size(); n_items == ranks.size();) {
    std::optional<Part> own;
    for (n_items = 0; n_items < ranks.size() && next(); ++n_items)
      if (n_items == ranks.rank()) own.emplace(work());
    std::vector<std::byte> message = packed(n_items);
    const size_t n_bytes = message.size();
    if (own) {
      const std::vector<std::byte> part = packed(*own);
      message.insert(message.end(), part.begin(), part.end());
    }
    const auto parts = ranks.gather_all(message);
    for (const auto& part : parts)
      if (unpacked<int>(std::span(part).first(n_bytes)) != n_items)
        throw Error("the text of one rank is longer than that of another",
                    "the same files under the same path on every machine");
    for (int i = 0; i < n_items; ++i)
      use(unpacked<Part>(std::span(parts[static_cast<size_t>(i)]).subspan(n_bytes)));
  }
}

// A value that rank 0 has, on every rank.
template <typename T>
void share_from_first(Communicator& ranks, T& value) {
  if (ranks.size() == 1) return;
  std::vector<std::byte> bytes = ranks.rank() == 0 ? packed(value) : std::vector<std::byte>();
  ranks.share(bytes);
  if (ranks.rank() > 0) value = unpacked<T>(bytes);
}

}  // namespace sluice::impl
