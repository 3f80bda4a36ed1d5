#include "io/json/parse.h"

#include <fmt/format.h>

#include <new>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "io/json/path.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

constexpr const char* kWrongFileHint = "is this the right file?";

// The parser's own words on one line, without its error code.
std::string parser_words(const Json::exception& error) {
  constexpr size_t kMaxShown = 200;
  std::string_view text = error.what();
  if (const auto end = text.find("] "); text.starts_with("[json.exception") && end != text.npos)
    text.remove_prefix(end + 2);
  std::string line;
  for (const char c : text.substr(0, kMaxShown)) line += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > kMaxShown ? line + "..." : line;
}

// Empties a tree from its leaves on. The library's own destructor takes memory for a list of all
// that an array holds, and ends the process where there is none.
void dismantle(Json& value) noexcept {
  if (value.is_array()) {
    auto& list = value.get_ref<Json::array_t&>();
    for (Json& inner : list) dismantle(inner);
    list.clear();
  } else if (value.is_object()) {
    auto& entries = value.get_ref<Json::object_t&>();
    for (auto& [key, inner] : entries) dismantle(inner);
    entries.clear();
  }
}

// What values take of memory, in bytes, with what malloc adds to them. An element of an array
// counts twice: an array that grows is there twice for a while.
constexpr size_t kElementBytes = 32, kEntryBytes = 96;
constexpr size_t kArrayBytes = 32, kObjectBytes = 64, kStringBytes = 48;

template <typename T>
size_t own_bytes(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) return kStringBytes + long_text_bytes(value.size());
  if constexpr (std::is_same_v<T, Json>) return value.is_array() ? kArrayBytes : kObjectBytes;
  return 0;
}

// Takes the parser's events and checks the limits before it adds to the tree. nlohmann's own
// builder with a callback looks at all elements of an array whenever one of them ends, which makes
// its time quadratic.
class TreeBuilder {
 public:
  TreeBuilder(std::string_view text, const std::string& label, const JsonLimits& limits,
              JsonStream* stream)
      : label_(label),
        limits_(limits),
        stream_(stream),
        values_left_(limits.values),
        memory_(limits.memory > 0 ? limits.memory : memory_for(text.size())),
        memory_left_(memory_) {}
  ~TreeBuilder() { dismantle(root_); }
  TreeBuilder(const TreeBuilder&) = delete;
  TreeBuilder& operator=(const TreeBuilder&) = delete;

  Json take() { return std::move(root_); }
  size_t memory_left() const { return memory_left_; }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(Json::number_integer_t value) { return put(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return put(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(Json::binary_t& value) { return put(std::move(value)); }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Open& object = open_.back();
    if (streamed_ > 0) {
      if (streamed_ == 1) object.key = &(streamed_key_ = name);
      stream_->key(name);
      return true;
    }
    use_memory(kEntryBytes + long_text_bytes(name.size()));
    const auto [entry, is_new] =
        object.value->get_ref<Json::object_t&>().try_emplace(std::move(name));
    object.key = &entry->first;
    object.slot = &entry->second;
    if (!is_new && limits_.repeated == RepeatedKeys::kRefused)
      throw Error(where() + ": is there twice", "leave one of them out");
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) {
    throw Error(where() + ": not valid JSON: " + parser_words(error), "is the file complete?");
  }

 private:
  // An object or array that has not ended yet.
  struct Open {
    Json* value;
    const std::string* key = nullptr;  // of the object's last entry
    Json* slot = nullptr;              // where that entry's value goes
  };

  template <typename T>
  bool put(T&& value) {
    place(std::forward<T>(value));
    return true;
  }

  bool open(Json value) {
    if (open_.size() + streamed_ >= kMaxJsonDepth)
      throw Error(fmt::format("{}: JSON nests deeper than {} levels", where(), kMaxJsonDepth),
                  kWrongFileHint);
    if (streamed_ > 0) {
      count_value();
      stream_->open(value.is_array());
      ++streamed_;
      return true;
    }
    const bool is_streamed = begins_stream(value.is_array());
    open_.push_back({.value = place(std::move(value))});
    if (is_streamed) {
      streamed_ = 1;
      n_streamed_ = 0;
    }
    return true;
  }

  bool close() {
    if (streamed_ > 1) {
      --streamed_;
      stream_->close();
      return true;
    }
    streamed_ = 0;
    open_.pop_back();
    return true;
  }

  bool begins_stream(bool is_array) {
    // Those of tokenizers are two levels deep.
    if (stream_ == nullptr || open_.size() > 2) return false;
    std::vector<std::string_view> keys;
    for (const Open& open : open_) {
      if (open.key == nullptr) return false;
      keys.push_back(*open.key);
    }
    return stream_->takes(keys, is_array);
  }

  void count_value() {
    if (values_left_ == 0)
      throw Error(fmt::format("{}: holds more than {} values", label_, limits_.values),
                  kWrongFileHint);
    --values_left_;
    if (streamed_ == 1) ++n_streamed_;
  }

  void use_memory(size_t bytes) {
    const size_t streamed = stream_ == nullptr ? 0 : stream_->memory();
    if (bytes + streamed > memory_left_)
      throw Error(fmt::format("{}: its values take more than {} bytes of memory", label_, memory_),
                  kWrongFileHint);
    memory_left_ -= bytes;
  }

  // Where the value is in the tree; its address stays until what is around it grows.
  template <typename T>
  Json* place(T&& value) {
    count_value();
    if (streamed_ > 0) {
      stream_->value(Json(std::forward<T>(value)));
      use_memory(0);
      return nullptr;
    }
    use_memory(own_bytes(std::as_const(value)));
    Json* at = &root_;
    if (!open_.empty()) {
      const Open& around = open_.back();
      if (around.value->is_array()) {
        use_memory(kElementBytes);
        return &around.value->get_ref<Json::array_t&>().emplace_back(std::forward<T>(value));
      }
      at = around.slot;
    }
    *at = Json(std::forward<T>(value));
    return at;
  }

  std::string where() const {
    JsonPath path;
    for (const Open& open : open_) {
      if (open.value->is_object()) {
        if (open.key != nullptr) path.add_key(*open.key);
      } else if (&open == &open_.back()) {
        // The element to come, or that of a stream that has not ended.
        path.add_index(streamed_ > 0 ? n_streamed_ - (streamed_ > 1 ? 1 : 0) : open.value->size());
      } else {
        path.add_index(open.value->size() - 1);
      }
    }
    return path.in(label_);
  }

  const std::string& label_;
  const JsonLimits& limits_;
  JsonStream* stream_;
  size_t values_left_;
  size_t memory_, memory_left_;  // bytes
  size_t streamed_ = 0;          // levels that the stream takes
  size_t n_streamed_ = 0;        // values of the list that it takes
  std::string streamed_key_;
  Json root_;
  std::vector<Open> open_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& label, const JsonLimits& limits,
                JsonStream* stream) {
  if (text.size() > limits.bytes)
    throw Error(
        fmt::format("{}: is {} bytes long, expected at most {}", label, text.size(), limits.bytes),
        kWrongFileHint);
  if (text.empty()) throw Error(label + ": is empty, expected JSON", "is the file complete?");
  try {
    TreeBuilder builder(text, label, limits, stream);
    // With throwing handlers the result is always true.
    Json::sax_parse(text.begin(), text.end(), &builder);
    if (stream != nullptr)
      stream->memory_left = text.size() + builder.memory_left() - stream->memory();
    return builder.take();
  } catch (const std::bad_alloc&) {
    throw Error(label + ": reading it takes more memory than there is",
                "raise the limit on memory (ulimit -v), or free some");
  }
}

}  // namespace sluice::impl
