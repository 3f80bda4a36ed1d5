// bases.safetensors, the sidecar file that `sluice calibrate` writes for a checkpoint.
//
//   __metadata__                     format "sluice-bases", version "1", model_sha256, text_path,
//                                    text_sha256, n_tokens
//   layers.<layer>.<input>.vectors   F32 (rank, d)    orthonormal rows
//   layers.<layer>.<input>.spectrum  F32 (rank to d)  shares of the energy, descending

#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "subspace/basis.h"

namespace sluice::impl {

// The model that bases are wanted for.
struct BasesModel {
  std::string sha256;
  int64_t n_layers = 0;
  RowWidths widths;
};

void write_bases(const Bases& bases, const std::filesystem::path& path);

// Throws Error for a file that is not whole, was made for another model, or whose rows are not an
// orthonormal basis of what they claim to be.
Bases read_bases(const std::filesystem::path& path, const BasesModel& model);
// The same from memory; `label` stands for the path in errors.
Bases parse_bases(std::span<const std::byte> bytes, const std::string& label,
                  const BasesModel& model);

}  // namespace sluice::impl
