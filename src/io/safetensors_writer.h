// Writes a safetensors file: what io/safetensors_header.h reads.

#pragma once

#include <filesystem>
#include <vector>

#include "core/tensor.h"
#include "io/safetensors_header.h"

namespace sluice::impl {

struct TensorToWrite {
  std::string name;
  ConstTensor tensor;  // contiguous, in host memory; F32, F16 or BF16
};

// Writes to a file in the same folder and renames it, so that an interrupted run leaves no half a
// file. Error when that fails. Names must be distinct.
void write_safetensors(const std::filesystem::path& path, const SafetensorsMetadata& metadata,
                       const std::vector<TensorToWrite>& tensors);

}  // namespace sluice::impl
