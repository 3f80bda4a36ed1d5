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

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kStatusLetters = ".REU";  // at the number they are packed as
constexpr int64_t kMaxTokens = 1 << 20;
constexpr size_t kMaxLayers = 1024;
constexpr size_t kMaxCells = size_t{1} << 24;  // a page of 150 MB; browsers give up beyond
constexpr double kCosineSlack = 1e-3;          // round-off, and four decimals

[[noreturn]] void refuse(const std::string& label, const std::string& what) {
  throw Error(label + ": " + what, "is this a file that sluice wrote with --json, unchanged?");
}

void check_length(const std::string& label, const std::string& path, size_t size, size_t n_tokens) {
  if (size != n_tokens)
    refuse(label, fmt::format("{} has {} entries, map.n_tokens is {}", path, size, n_tokens));
}

void check_layer(const Json& layer, const std::string& label, const std::string& path,
                 size_t n_tokens) {
  const auto& status = layer["status"].get_ref<const std::string&>();
  const auto& owner = layer["owner"].get_ref<const Json::array_t&>();
  const auto& cosine = layer["cosine"].get_ref<const Json::array_t&>();
  check_length(label, path + ".status", status.size(), n_tokens);
  check_length(label, path + ".owner", owner.size(), n_tokens);
  check_length(label, path + ".cosine", cosine.size(), n_tokens);
  if (const size_t at = status.find_first_not_of(kStatusLetters); at != status.npos)
    refuse(label,
           fmt::format("{}.status has another letter than {} at {}", path, kStatusLetters, at));
  for (size_t i = 0; i < n_tokens; ++i) {
    const auto position = owner[i].get<int64_t>();
    if (position < 0 || position >= static_cast<int64_t>(n_tokens))
      refuse(label,
             fmt::format("{}.owner[{}] is {}, expected 0 to {}", path, i, position, n_tokens - 1));
    if (std::abs(cosine[i].get<double>()) > 1 + kCosineSlack)
      refuse(label, fmt::format("{}.cosine[{}] is {}, expected -1 to 1", path, i,
                                cosine[i].get<double>()));
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

void check_map(const Json& map, const std::string& label) {
  const auto n_tokens = map["n_tokens"].get<int64_t>();
  const size_t n_layers = map["layers"].size();
  if (n_tokens < 1 || n_tokens > kMaxTokens)
    refuse(label, fmt::format("map.n_tokens is {}, expected 1 to {}", n_tokens, kMaxTokens));
  if (n_layers < 1 || n_layers > kMaxLayers)
    refuse(label, fmt::format("map.layers has {} entries, expected 1 to {}", n_layers, kMaxLayers));
  const auto n = static_cast<size_t>(n_tokens);
  if (n * n_layers > kMaxCells)
    refuse(label,
           fmt::format("map has {} tokens x {} layers, more than the {} that a page can show", n,
                       n_layers, kMaxCells));
  check_length(label, "map.tokens", map["tokens"].size(), n);
  for (size_t i = 0; i < n_layers; ++i)
    check_layer(map["layers"][i], label, fmt::format("map.layers[{}]", i), n);
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
