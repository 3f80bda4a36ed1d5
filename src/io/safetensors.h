// safetensors: an 8-byte length, a JSON header, then the tensors' bytes.

#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "io/weight_store.h"

namespace sluice::impl {

// Adds every tensor of one .safetensors file. F32, F16 and BF16 tensors are readable; tensors of
// other types (masks, position ids) are checked and noted as unreadable. A file is refused unless
// its tensors cover the data exactly: no overlap, no hole, nothing after the last.
void add_safetensors(const std::filesystem::path& path, WeightStore& store);

// The same from memory that outlives the store; `label` stands for the path in errors.
void parse_safetensors(std::span<const std::byte> bytes, const std::string& label,
                       WeightStore& store);

// A Hugging Face folder: model.safetensors, or the shards of model.safetensors.index.json.
WeightStore open_safetensors_folder(const std::filesystem::path& folder);

}  // namespace sluice::impl
