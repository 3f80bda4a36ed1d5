// What tokenizer_config.json and special_tokens_map.json say about special tokens.

#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/tokenizer/pipeline.h"

namespace sluice::impl::tok {

struct SpecialTokens {
  std::string tokenizer_class;  // empty when not stated
  std::optional<std::string> bos, eos, unk, cls;
  std::vector<std::string> all;  // every token named special, these included
  bool add_bos = false;
  bool add_eos = false;
  bool add_prefix_space = false;  // only for tokenizers without a tokenizer.json
};

// Both files may be absent. tokenizer_config.json comes first where they disagree.
SpecialTokens read_special_tokens(const std::filesystem::path& folder);

// Makes the named tokens special where the vocabulary has them, sets bos and eos, and adds them to
// the template when asked for and not there already.
void apply_special_tokens(const SpecialTokens& special, PipelineParts& parts);

}  // namespace sluice::impl::tok
