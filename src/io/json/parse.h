// Text -> JSON. Whatever the text holds, the outcome is a tree of bounded size and depth or one
// Error that names the place.

#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice::impl {

// Bounds the stack of everything that recurses over a tree. A tokenizer.json needs about ten.
inline constexpr size_t kMaxJsonDepth = 64;

// What becomes of a key that an object has twice. Programs of others keep the last, and their files
// are read as they read them.
enum class RepeatedKeys { kRefused, kLastCounts };

struct JsonLimits {
  size_t bytes;   // of the text
  size_t values;  // of the tree, which takes up to a hundred times the memory of the text
  RepeatedKeys repeated = RepeatedKeys::kRefused;
};

// `label` stands for the file in errors.
nlohmann::json parse_json(std::string_view text, const std::string& label,
                          const JsonLimits& limits);

}  // namespace sluice::impl
