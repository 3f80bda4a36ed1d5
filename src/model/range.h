// What follows each other, of layers, heads, rows or columns.

#pragma once

#include <cstdint>

namespace sluice::impl {

struct Range {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool has(int64_t i) const { return i >= begin && i < end; }
  bool operator==(const Range&) const = default;
};

using LayerRange = Range;

}  // namespace sluice::impl
