#include "io/tokenizer/special_tokens.h"

#include "core/quote.h"
#include "io/tokenizer/json_values.h"

namespace sluice::impl::tok {

namespace {

// "<s>" or {"content": "<s>", …}
std::string token_content(const JsonValue& json) {
  return json.raw().is_object() ? json.at("content").string() : json.string();
}

void read_file(const std::filesystem::path& path, SpecialTokens& special) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return;  // opening it gives the reason
  const Json root = read_tokenizer_file(path);
  const JsonSource source{root, path_label(path), kJsonHint};
  const JsonValue json(source);
  const auto read = [&](std::string_view key, std::optional<std::string>* out) {
    const auto token = json.find(key);
    if (!token) return;
    // Old files write false for "none".
    if (token->raw().is_boolean() && !token->raw().get<bool>()) return;
    special.all.push_back(token_content(*token));
    if (out && !*out) *out = special.all.back();
  };
  read("bos_token", &special.bos);
  read("eos_token", &special.eos);
  read("unk_token", &special.unk);
  read("cls_token", &special.cls);
  for (const std::string_view key : {"sep_token", "pad_token", "mask_token"}) read(key, nullptr);
  for (const std::string_view key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = json.find(key);
    if (!list || !list->raw().is_array()) continue;
    for (size_t i = 0; i < list->array().size(); ++i) {
      special.all.push_back(token_content(list->element(i)));
    }
  }
  if (special.tokenizer_class.empty()) {
    special.tokenizer_class = json.string_or("tokenizer_class", "");
  }
  special.add_bos = special.add_bos || json.boolean_or("add_bos_token", false);
  special.add_prefix_space = special.add_prefix_space || json.boolean_or("add_prefix_space", false);
  special.add_eos = special.add_eos || json.boolean_or("add_eos_token", false);
}

}  // namespace

SpecialTokens read_special_tokens(const std::filesystem::path& folder) {
  SpecialTokens special;
  read_file(folder / "tokenizer_config.json", special);
  read_file(folder / "special_tokens_map.json", special);
  return special;
}

void apply_special_tokens(const SpecialTokens& special, PipelineParts& parts) {
  const Vocab& vocab = parts.model->vocab();
  for (const std::string& content : special.all) {
    const auto id = vocab.id_of(content);
    if (!id || parts.added.is_special(content)) continue;
    parts.added.add({.content = content, .special = true}, *id, parts.normalizer.get());
  }
  const auto find = [&](const std::optional<std::string>& content) -> std::optional<int32_t> {
    if (!content) return std::nullopt;
    const auto id = parts.added.vocab().id_of(*content);
    return id ? id : vocab.id_of(*content);
  };
  parts.bos = find(special.bos);
  parts.eos = find(special.eos);
  PostProcessor& post = parts.post_processor;
  if (special.add_bos && parts.bos && !post.starts_with(*parts.bos)) post.put_first(*parts.bos);
  if (special.add_eos && parts.eos && !post.ends_with(*parts.eos)) post.put_last(*parts.eos);
}

}  // namespace sluice::impl::tok
