// Rotary embedding tables of a model: docs/algorithm.md gives the rotation, this the angles.

#pragma once

#include <vector>

#include "model/spec.h"

namespace sluice::impl {

// (dim / 2) angles per position. `context` matters to dynamic scaling and long-rope alone, whose
// frequencies are fixed once for the length in use, so that keys in the cache stay valid.
std::vector<float> rotary_frequencies(const RotarySpec& rotary, int64_t context);

struct RotaryTables {
  Buffer cosine;  // (n_positions, dim / 2) f32, times the factor of attention
  Buffer sine;    // (n_positions, dim / 2) f32
};
RotaryTables make_rotary_tables(const RotarySpec& rotary, int64_t context, int64_t n_positions,
                                Backend& backend);

}  // namespace sluice::impl
