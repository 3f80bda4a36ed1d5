#include "ranks/alike.h"

#include "ranks/archive.h"

namespace sluice::impl {

void check_alike(Communicator& ranks, const std::string& text) {
  std::string own = text;
  const auto all = ranks.gather_all(packed(own));
  const auto first = unpacked<std::string>(all.front());
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (const auto other = unpacked<std::string>(all[rank]); other != first)
      throw Error("ranks are of different kinds: rank 0 is " + first + ", rank " +
                      std::to_string(rank) + " is " + other,
                  "machines of one kind, or --split pipeline");
}

}  // namespace sluice::impl
