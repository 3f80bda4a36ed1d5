// Activation bases of a sidecar file in use: read for a model, and the `bases` of results.json.

#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "model/checkpoint.h"
#include "subspace/basis.h"

namespace sluice::impl {

// Where bases are from.
struct BasesOrigin {
  std::string path;                    // of the sidecar; empty: made in this run
  std::string text_path, text_sha256;  // that they were calibrated on
  int64_t n_tokens = 0;                // of it
  // Whether that is the text they are used on; nothing where no whole file can be compared.
  std::optional<bool> same_text;
};

struct SidecarBases {
  Bases bases;
  BasesOrigin origin;
};

// Reads bases for a model, to be used on a text; empty: on no file. Throws Error for a sidecar that
// is damaged or another model's.
SidecarBases read_sidecar(const std::filesystem::path& path, const Checkpoint& checkpoint,
                          const std::filesystem::path& text);

// The `bases` entry.
nlohmann::json describe_bases(const BasesOrigin& origin);

}  // namespace sluice::impl
