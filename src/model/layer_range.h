// Layers that follow each other.

#pragma once

#include <cstdint>

namespace sluice::impl {

struct LayerRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool has(int64_t layer) const { return layer >= begin && layer < end; }
  bool operator==(const LayerRange&) const = default;
};

}  // namespace sluice::impl
