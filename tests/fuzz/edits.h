// Structure-aware inputs: a fuzzer's bytes are read as a script of edits to a file that is sound.
// So the fuzzer reaches what lies behind the first checks of a parser.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace sluice::impl::fuzz {

// Numbers and strings from the front of an input; 0 and nothing once it has ended.
class Script {
 public:
  explicit Script(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ended() const { return bytes_.empty(); }
  template <typename T>
  T take() {
    T value{};
    const size_t count = std::min(sizeof(T), bytes_.size());
    std::memcpy(&value, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
    return value;
  }
  // From 0 to limit - 1; 0 for a limit of 0.
  size_t below(size_t limit) {
    const size_t value = limit > 256 ? take<uint32_t>() : take<uint8_t>();
    return limit == 0 ? 0 : value % limit;
  }
  std::string text() {
    const size_t count = std::min<size_t>(below(16), bytes_.size());
    std::string text(reinterpret_cast<const char*>(bytes_.data()), count);
    bytes_ = bytes_.subspan(count);
    return text;
  }
  // The numbers at which sizes, counts and types go wrong, and a few others.
  int64_t integer() {
    constexpr std::array<int64_t, 24> kEdges = {
        0,    1,     2,       3,          4,          5,           7,         8,
        16,   31,    32,      33,         64,         -1,          -32,       127,
        1024, 65536, 1000000, 0x7fffffff, 0x80000000, 0x100000000, 1LL << 53, 0x7fffffffffffffff};
    const size_t which = below(kEdges.size() + 1);
    return which < kEdges.size() ? kEdges[which] : take<int16_t>();
  }
  double number() {
    constexpr std::array<double, 12> kEdges = {0,    -1,    0.5,  1,      1e-6,   1e-40,
                                               1e30, 1e308, 0.25, 10000., 1e-300, 3.5};
    return kEdges[below(kEdges.size())];
  }

 private:
  std::span<const std::byte> bytes_;
};

// A value of the tree, chosen level by level, so that small parts are met as often as long lists.
inline nlohmann::json& choose(nlohmann::json& root, Script& script) {
  nlohmann::json* at = &root;
  while (at->is_structured() && !at->empty() && script.below(6) != 0) {
    auto child = at->begin();
    std::advance(child, static_cast<int64_t>(script.below(at->size())));
    at = &*child;
  }
  return *at;
}

// One change: another number, string or type, a part left out, repeated or taken from elsewhere.
// `words` are strings that the format knows.
inline void edit_json(nlohmann::json& root, Script& script, std::span<const char* const> words) {
  using Json = nlohmann::json;
  const size_t kind = script.below(10);
  const Json copy = kind == 8 ? choose(root, script) : Json();
  Json& at = choose(root, script);
  switch (kind) {
    case 0:
    case 1:
      at = script.integer();
      break;
    case 2:
      at = script.number();
      break;
    case 3:
    case 4:
      at = words[script.below(words.size())];
      break;
    case 5: {
      const Json odd[] = {nullptr, true, false, Json::array(), Json::object(), script.text()};
      at = odd[script.below(std::size(odd))];
      break;
    }
    case 6:
      if (!at.is_structured() || at.empty()) break;
      at.erase(std::next(at.begin(), static_cast<int64_t>(script.below(at.size()))));
      break;
    case 7:
      if (at.is_array() && !at.empty()) at.push_back(Json(at[script.below(at.size())]));
      if (at.is_object()) at[words[script.below(words.size())]] = script.integer();
      break;
    case 8:
      at = copy;
      break;
    default:
      if (at.is_number_integer()) at = at.get<int64_t>() / 2 + script.take<int8_t>();
      if (at.is_string()) at = at.get<std::string>() + script.text();
  }
}

// For files: strings of a script need not be UTF-8.
inline std::string text_of(const nlohmann::json& root) {
  return root.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace sluice::impl::fuzz
