#include "io/tokenizer/json_values.h"

#include <fmt/format.h>

#include "core/quote.h"
#include "io/json_file.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

Json read_tokenizer_file(const std::filesystem::path& path, JsonStream* stream) {
  // 256k tokens and 512k merges in pairs: 2M values.
  constexpr JsonLimits kLimits = {
      .bytes = size_t{256} << 20, .values = size_t{1} << 22, .repeated = RepeatedKeys::kLastCounts};
  return read_json_file(path, kLimits, stream);
}

int32_t token_id(const JsonValue& json) {
  return static_cast<int32_t>(json.integer(0, kMaxTokenId));
}

std::optional<int32_t> as_token_id(const Json& value) {
  // The library gives numbers that are not negative as unsigned ones.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{kMaxTokenId}) return {};
  return value.get<int32_t>();
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
