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
// once a round, and a rank that fails is noticed before the next one.
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
    if (n_items == 0) return;
    const auto parts = ranks.gather_all(own ? packed(*own) : std::vector<std::byte>());
    for (int i = 0; i < n_items; ++i) use(unpacked<Part>(parts[static_cast<size_t>(i)]));
  }
}

// A value that rank 0 has, on every rank.
template <typename T>
void share_from_first(Communicator& ranks, T& value) {
  if (ranks.size() == 1) return;
  const auto all = ranks.gather_all(ranks.rank() == 0 ? packed(value) : std::vector<std::byte>());
  if (ranks.rank() > 0) value = unpacked<T>(all[0]);
}

}  // namespace sluice::impl
