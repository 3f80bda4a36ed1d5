#include "io/chat/template_file.h"

#include "core/quote.h"
#include "io/json/value.h"
#include "io/mapped_file.h"
#include "io/tokenizer/json_values.h"

namespace sluice::impl {
namespace {

constexpr size_t kMostFileBytes = size_t{16} << 20;

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error;  // opening it gives the reason
}

std::optional<std::string> default_of(const JsonValue& list) {
  for (size_t i = 0; i < list.array().size(); ++i)
    if (const JsonValue entry = list.element(i); entry.at("name").string() == "default")
      return entry.at("template").string();
  return std::nullopt;
}

}  // namespace

std::optional<std::string> read_chat_template(const std::filesystem::path& folder) {
  if (const auto path = folder / "chat_template.jinja"; is_there(path))
    return read_text_file(path, kMostFileBytes);
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!is_there(path)) return std::nullopt;
  const nlohmann::json root = tok::read_tokenizer_file(path);
  const JsonSource source{root, path_label(path), tok::kJsonHint};
  const std::optional<JsonValue> found = JsonValue(source).find("chat_template");
  if (!found) return std::nullopt;
  return found->raw().is_array() ? default_of(*found) : found->string();
}

std::optional<std::string> read_chat_template(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  if (file.find(kKey) == nullptr) return std::nullopt;
  return file.require_string(kKey);
}

}  // namespace sluice::impl
