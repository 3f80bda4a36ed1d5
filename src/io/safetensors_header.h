// The JSON header of a safetensors file, as entries that match the file's size.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace sluice::impl {

struct SafetensorsEntry {
  std::string name;
  std::string type;                  // in the file's words: "F32"
  std::optional<DType> dtype;        // nothing for types we do not read
  Shape shape;                       // empty for types we do not read
  std::span<const std::byte> bytes;  // inside the file
};

// `__metadata__`: strings by name.
using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

// Every entry is checked against the file: range, byte count, no overlap, no hole. `metadata`
// receives the file's own strings, where a caller wants them.
std::vector<SafetensorsEntry> read_safetensors_header(std::span<const std::byte> file,
                                                      const std::string& label,
                                                      SafetensorsMetadata* metadata = nullptr);

}  // namespace sluice::impl
