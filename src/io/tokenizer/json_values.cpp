#include "io/tokenizer/json_values.h"

#include <fmt/format.h>

#include "core/quote.h"
#include "io/json_file.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

Json read_tokenizer_file(const std::filesystem::path& path) {
  // 256k tokens and 512k merges in pairs: 2M values. A value takes about 100 bytes in memory.
  constexpr JsonLimits kLimits = {
      .bytes = size_t{256} << 20, .values = size_t{1} << 22, .repeated = RepeatedKeys::kLastCounts};
  return read_json_file(path, kLimits);
}

int32_t token_id(const JsonValue& json) {
  constexpr int64_t kMaxId = 1 << 24;  // the largest vocabularies have about 2^18
  return static_cast<int32_t>(json.integer(0, kMaxId));
}

char32_t char_or(const JsonValue& json, std::string_view key, char32_t otherwise) {
  const auto value = json.find(key);
  if (!value) return otherwise;
  const std::string& text = value->string();
  const Utf8Char c = text.empty() ? Utf8Char{} : decode_char(text, 0);
  if (!c.valid || c.n_bytes != text.size()) value->expected("a single character");
  return c.code;
}

const std::string& type_of(const JsonValue& json) { return json.at("type").string(); }

void refuse_type(const JsonValue& json, std::string_view type) {
  json.refuse(fmt::format("has the type {}, which is not supported", quote(type)));
}

}  // namespace sluice::impl::tok
