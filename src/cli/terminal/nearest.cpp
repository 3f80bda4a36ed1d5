#include "cli/terminal/nearest.h"

#include <algorithm>
#include <vector>

namespace sluice::impl::cli {
namespace {

constexpr size_t kMostNameBytes = 64;  // longer words are no misspelt names

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<size_t> rows((a.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> size_t& { return rows[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      const size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  return at(a.size(), b.size());
}

std::string nearest_name(std::string_view word, std::span<const std::string> names) {
  if (word.empty() || word.size() > kMostNameBytes) return {};
  std::string best;
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;  // a third of the letters may differ
  for (const std::string& name : names) {
    const bool begins = word.size() >= 3 && name.starts_with(word);
    const size_t distance = begins ? 1 : edit_distance(word, name);
    if (distance >= least) continue;
    least = distance;
    best = name;
  }
  return best;
}

}  // namespace sluice::impl::cli
