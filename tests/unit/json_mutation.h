// JSON with a value replaced by something odd, at random: for searches through parsers.

#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <span>

namespace sluice::impl::test {

// Descends into random children, and replaces, removes or repeats one. At each level it stops with
// probability 1 / `stops`.
inline void mutate(nlohmann::json& node, std::mt19937& random,
                   std::span<const nlohmann::json> odd_values, uint32_t stops) {
  const bool deeper = node.is_structured() && !node.empty() && random() % stops != 0;
  if (!deeper) {
    node = odd_values[random() % odd_values.size()];
    return;
  }
  auto child = node.begin();
  std::advance(child, static_cast<int64_t>(random() % node.size()));
  if (random() % 12 == 0) {
    node.erase(child);
  } else if (node.is_array() && random() % 12 == 0) {
    node.push_back(nlohmann::json(*child));
  } else {
    mutate(*child, random, odd_values, stops);
  }
}

}  // namespace sluice::impl::test
