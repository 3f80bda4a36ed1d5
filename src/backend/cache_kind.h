// How rows of keys and values are kept in a cache.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace sluice::impl {

enum class CacheKind : uint8_t {
  kExact,  // in the compute dtype
  kInt8,   // rows of int8, each with a scale: its largest magnitude over 127
};
inline float int8_scale(float largest) { return largest / 127; }
// Rows that are not finite have a scale that is none, and stay so.
inline float int8_largest(float largest, float x) {
  return std::isfinite(x) ? std::max(largest, std::abs(x)) : std::nanf("");
}
inline int8_t to_int8(float x, float scale) {
  if (!(scale > 0)) return 0;
  return static_cast<int8_t>(std::clamp(std::nearbyint(x / scale), -127.0f, 127.0f));
}

}  // namespace sluice::impl
