// The token map of `analyze`: who stands for whom at every layer, checked and packed for the page.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl {

class JsonValue;

// Throws Error unless a `map` of the right types also has the right lengths, letters and ranges.
void check_map(const JsonValue& map);

// A checked map with its layers as base64, layer after layer (n_layers, n_tokens):
//   `status` one byte: 0 redundant, 1 representative, 2 exempt, 3 uncovered;
//   `owner`  `owner_bytes` (2 or 4) little endian;
//   `cosine` two bytes, signed, little endian: cosine x 32767.
// Half a million numbers take 1.7 MB so, where JSON takes 5.
nlohmann::json pack_map(const nlohmann::json& map);

}  // namespace sluice::impl
