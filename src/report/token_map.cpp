#include "report/token_map.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/json/value.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kStatusLetters = ".REU";  // at the number they are packed as
constexpr int64_t kMaxTokens = 1 << 20;
constexpr size_t kMaxLayers = 1024;
constexpr size_t kMaxCells = size_t{1} << 24;  // a page of 150 MB; browsers give up beyond
constexpr double kCosineSlack = 1e-3;          // round-off, and four decimals

void check_layer(const JsonValue& layer, int64_t n_tokens) {
  const JsonValue status = layer.at("status");
  const std::string& letters = status.string();
  if (std::ssize(letters) != n_tokens)
    status.refuse(fmt::format("has {} letters, map.n_tokens is {}", letters.size(), n_tokens));
  if (const size_t at = letters.find_first_not_of(kStatusLetters); at != letters.npos)
    status.refuse(fmt::format("has another letter than {} at {}", kStatusLetters, at));
  const JsonValue owner = layer.at("owner"), cosine = layer.at("cosine");
  owner.expect_size(n_tokens, "map.n_tokens");
  cosine.expect_size(n_tokens, "map.n_tokens");
  for (size_t i = 0; i < letters.size(); ++i) {
    owner.element(i).integer(0, n_tokens - 1);
    const JsonValue each = cosine.element(i);
    if (std::abs(each.number()) > 1 + kCosineSlack) each.expected(number_range(-1, 1));
  }
}

void append_little_endian(std::string& bytes, uint32_t value, int n_bytes) {
  for (int i = 0; i < n_bytes; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

std::string base64(const std::string& bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // OpenSSL ends it with a zero
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace

void check_map(const JsonValue& map) {
  const int64_t n_tokens = map.at("n_tokens").integer(1, kMaxTokens);
  const JsonValue layers = map.at("layers");
  const size_t n_layers = layers.array().size();
  if (n_layers < 1 || n_layers > kMaxLayers)
    layers.refuse(fmt::format("has {} elements, expected 1 to {}", n_layers, kMaxLayers));
  if (static_cast<size_t>(n_tokens) * n_layers > kMaxCells)
    map.refuse(fmt::format("has {} tokens x {} layers, more than the {} that a page can show",
                           n_tokens, n_layers, kMaxCells));
  map.at("tokens").expect_size(n_tokens, "map.n_tokens");
  for (size_t i = 0; i < n_layers; ++i) check_layer(layers.element(i), n_tokens);
}

Json pack_map(const Json& map) {
  const size_t n_tokens = map["tokens"].size();
  const int owner_bytes = n_tokens > 65536 ? 4 : 2;
  std::string status, owner, cosine;
  Json numbers = Json::array();
  for (const Json& layer : map["layers"]) {
    numbers.push_back(layer["layer"]);
    for (const char letter : layer["status"].get_ref<const std::string&>())
      status += static_cast<char>(kStatusLetters.find(letter));
    for (const Json& position : layer["owner"])
      append_little_endian(owner, position.get<uint32_t>(), owner_bytes);
    for (const Json& value : layer["cosine"]) {
      const long scaled = std::lround(std::clamp(value.get<double>(), -1.0, 1.0) * 32767);
      append_little_endian(cosine, static_cast<uint32_t>(scaled), 2);
    }
  }
  SLUICE_CHECK(owner.size() <= kMaxCells * sizeof(uint32_t));
  return {{"tau", map["tau"]},
          {"n_tokens", n_tokens},
          {"space", map["space"]},
          {"rule", map["rule"]},
          {"tokens", map["tokens"]},
          {"n_layers", numbers.size()},
          {"layer_numbers", std::move(numbers)},
          {"status", base64(status)},
          {"owner", base64(owner)},
          {"owner_bytes", owner_bytes},
          {"cosine", base64(cosine)}};
}

}  // namespace sluice::impl
