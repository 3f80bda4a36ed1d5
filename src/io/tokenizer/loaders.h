// Where a tokenizer can come from.

#pragma once

#include <filesystem>
#include <memory>

#include "io/tokenizer/tokenizer.h"

namespace sluice::impl::tok {

struct SpecialTokens;

std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& folder,
                                               const SpecialTokens& special);
// GPT-2 and OPT checkpoints may ship vocab.json and merges.txt and no tokenizer.json.
std::unique_ptr<Tokenizer> load_gpt2_files(const std::filesystem::path& folder,
                                           const SpecialTokens& special);
// ESM-2 ships a list of letters, vocab.txt, and no tokenizer.json.
std::unique_ptr<Tokenizer> load_esm_vocab(const std::filesystem::path& folder,
                                          const SpecialTokens& special);

}  // namespace sluice::impl::tok
