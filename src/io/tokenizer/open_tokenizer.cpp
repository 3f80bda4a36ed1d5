#include "core/error.h"
#include "core/quote.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/loaders.h"
#include "io/tokenizer/special_tokens.h"
#include "io/tokenizer/tokenizer.h"

namespace sluice::impl {

namespace {

// True as well when it cannot be told (a loop of links): opening it then gives the reason.
bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error;
}

bool is_esm(const std::filesystem::path& folder, const tok::SpecialTokens& special) {
  if (!special.tokenizer_class.empty()) return special.tokenizer_class == "EsmTokenizer";
  const std::filesystem::path config = folder / "config.json";
  if (!is_there(config)) return false;
  const tok::Json root = tok::read_tokenizer_file(config);
  const JsonSource source{root, path_label(config), tok::kJsonHint};
  return JsonValue(source).string_or("model_type", "") == "esm";
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& folder) {
  const tok::SpecialTokens special = tok::read_special_tokens(folder);
  if (is_there(folder / "tokenizer.json")) {
    return tok::load_tokenizer_json(folder, special);
  }
  if (is_there(folder / "vocab.txt") && is_esm(folder, special)) {
    return tok::load_esm_vocab(folder, special);
  }
  const bool gpt2_class =
      special.tokenizer_class.empty() || special.tokenizer_class.starts_with("GPT2Tokenizer");
  if (is_there(folder / "vocab.json") && is_there(folder / "merges.txt") && gpt2_class) {
    return tok::load_gpt2_files(folder, special);
  }
  throw Error(path_label(folder) + " has no tokenizer.json",
              "Hugging Face's AutoTokenizer writes one with save_pretrained()");
}

}  // namespace sluice::impl
