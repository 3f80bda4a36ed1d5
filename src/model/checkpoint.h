// A checkpoint on disk: a Hugging Face folder or a GGUF file, opened and understood, nothing
// loaded yet.

#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "io/gguf.h"
#include "io/tokenizer/tokenizer.h"
#include "io/weight_store.h"
#include "model/spec.h"

namespace sluice::impl {

struct Checkpoint {
  std::filesystem::path path;
  std::string format;  // "safetensors" or "gguf"
  ModelDescription description;
  std::optional<GgufFile> gguf;  // holds the weights when format is gguf
  WeightStore folder_weights;    // otherwise

  const WeightStore& weights() const { return gguf ? gguf->weights : folder_weights; }
  const ModelSpec& spec() const { return description.spec; }
};

// A folder with config.json, or a .gguf file. Shared, because a model goes on reading the rows of
// its tables from the map.
std::shared_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& path);

// The tokenizer that belongs to it; Error when there is none or its ids exceed the model's.
std::unique_ptr<Tokenizer> open_tokenizer_of(const Checkpoint& checkpoint);

// Its chat template: nothing where it has none.
std::optional<std::string> chat_template_of(const Checkpoint& checkpoint);

}  // namespace sluice::impl
