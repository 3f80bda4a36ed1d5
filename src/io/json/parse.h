// Text -> JSON. Whatever the text holds, the outcome is a tree of bounded size and depth or one
// Error that names the place.

#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
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
  size_t values;  // of the tree
  RepeatedKeys repeated = RepeatedKeys::kRefused;
  size_t memory = 0;  // bytes that the tree may take, 0 for memory_for() the text
};

// What a file of so many bytes may take of memory as a tree, or as what is made of it. With its
// text that is at most 4 times the file and 64 MB, of which 24 MB are left to the program.
constexpr size_t memory_for(size_t file_bytes) { return 3 * file_bytes + 40'000'000; }
// A string's characters, where they do not fit into the string itself; with what malloc adds.
constexpr size_t long_text_bytes(size_t size) { return size > 15 ? size + 24 : 0; }

// Takes the values of long lists as they are read, so that no tree is made of them.
class JsonStream {
 public:
  virtual ~JsonStream() = default;
  // Whether it takes what the object or array holds that begins now, under these keys. The tree has
  // an empty one in its place.
  virtual bool takes(std::span<const std::string_view> keys, bool is_array) = 0;
  // What the list holds, in order. Inner lists are told by open() and close().
  virtual void key(const std::string& name) = 0;
  virtual void value(nlohmann::json scalar) = 0;
  virtual void open(bool is_array) = 0;
  virtual void close() = 0;
  // Bytes that its lists take.
  virtual size_t memory() const = 0;

  // What is left to those who make something of tree and lists, once the text is freed; set when
  // all of it is read.
  size_t memory_left = 0;
};

// `label` stands for the file in errors. `stream` may be null.
nlohmann::json parse_json(std::string_view text, const std::string& label, const JsonLimits& limits,
                          JsonStream* stream = nullptr);

}  // namespace sluice::impl
