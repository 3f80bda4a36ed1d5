#include "model/checkpoint.h"

#include <fmt/format.h>

#include "core/error.h"
#include "io/chat/template_file.h"
#include "io/config.h"
#include "io/safetensors.h"
#include "model/families.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;

// generation_config.json, where present, has the last word on what ends a text.
void read_generation_config(const fs::path& folder, ModelSpec& spec) {
  const fs::path path = folder / "generation_config.json";
  std::error_code error;
  if (!fs::exists(path, error) && !error) return;  // opening it gives the reason
  const std::vector<int32_t> ids = eos_ids(ConfigReader(path));
  if (!ids.empty()) spec.eos_ids = ids;
}

}  // namespace

std::shared_ptr<const Checkpoint> open_checkpoint(const fs::path& path) {
  auto opened = std::make_shared<Checkpoint>();
  Checkpoint& checkpoint = *opened;
  checkpoint.path = path;
  std::error_code error;
  // Where it cannot be told, opening it gives the reason.
  if (!fs::exists(path, error) && !error)
    throw Error(path.string() + ": no such file or folder",
                "-m takes a Hugging Face model folder or a .gguf file");
  if (fs::is_directory(path, error)) {
    if (!fs::exists(path / "config.json", error) && !error)
      throw Error(path.string() + ": no config.json in this folder",
                  "-m takes a Hugging Face model folder or a .gguf file");
    checkpoint.format = "safetensors";
    const ConfigReader config(path / "config.json");
    config.require_string("model_type");
    checkpoint.folder_weights = open_safetensors_folder(path);
    checkpoint.description = describe(config, checkpoint.folder_weights);
    read_generation_config(path, checkpoint.description.spec);
  } else {
    if (path.extension() == ".safetensors" || path.extension() == ".json")
      throw Error(path.string() + ": is one file of a model folder",
                  "pass the folder that holds config.json");
    checkpoint.format = "gguf";
    checkpoint.gguf = open_gguf(path);
    checkpoint.description = describe(*checkpoint.gguf);
    if (const auto eos = checkpoint.gguf->find_int("tokenizer.ggml.eos_token_id");
        eos && *eos >= 0 && *eos < checkpoint.spec().vocab)
      checkpoint.description.spec.eos_ids = {static_cast<int32_t>(*eos)};
  }
  return opened;
}

std::unique_ptr<Tokenizer> open_tokenizer_of(const Checkpoint& checkpoint) {
  auto tokenizer =
      checkpoint.gguf ? open_tokenizer(*checkpoint.gguf) : open_tokenizer(checkpoint.path);
  if (tokenizer->vocab_size() > checkpoint.spec().vocab)
    throw Error(
        fmt::format("{}: the tokenizer has {} tokens, the model {}", checkpoint.path.string(),
                    tokenizer->vocab_size(), checkpoint.spec().vocab),
        "are tokenizer and weights from one checkpoint?");
  return tokenizer;
}

std::optional<std::string> chat_template_of(const Checkpoint& checkpoint) {
  return checkpoint.gguf ? read_chat_template(*checkpoint.gguf)
                         : read_chat_template(checkpoint.path);
}

}  // namespace sluice::impl
