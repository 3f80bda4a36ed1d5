#include "eval/sidecar_bases.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/quote.h"
#include "eval/results.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"
#include "subspace/sidecar.h"

namespace sluice::impl {
namespace {

// Damage to the container: hints of the format's reader are about checkpoints and downloads.
void check_whole(std::span<const std::byte> bytes, const std::string& label) {
  try {
    read_safetensors_header(bytes, label);
  } catch (const Error& error) {
    throw Error(error.what(), "make it again with sluice calibrate");
  }
}

}  // namespace

SidecarBases read_sidecar(const std::filesystem::path& path, const Checkpoint& checkpoint,
                          const std::filesystem::path& text) {
  const ModelSpec& spec = checkpoint.spec();
  const auto file = MappedFile::open(path);
  const std::string label = path_label(path);
  check_whole(file->bytes(), label);
  SidecarBases out;
  out.bases = parse_bases(
      file->bytes(), label,
      {.sha256 = model_sha256(checkpoint), .n_layers = spec.n_layers, .widths = spec.row_widths()});
  out.origin = {.path = path.string(),
                .text_path = out.bases.text_path,
                .text_sha256 = out.bases.text_sha256,
                .n_tokens = out.bases.n_tokens,
                .same_text = {}};
  if (!text.empty()) out.origin.same_text = out.bases.text_sha256 == sha256_of({text});
  return out;
}

nlohmann::json describe_bases(const BasesOrigin& origin) {
  return {
      {"path", origin.path.empty() ? nlohmann::json() : nlohmann::json(origin.path)},
      {"text",
       {{"path", origin.text_path}, {"sha256", origin.text_sha256}, {"n_tokens", origin.n_tokens}}},
      {"same_text", or_null(origin.same_text)}};
}

}  // namespace sluice::impl
