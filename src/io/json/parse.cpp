#include "io/json/parse.h"

#include <fmt/format.h>

#include <new>
#include <nlohmann/json.hpp>
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

// Takes the parser's events and checks the limits before it adds to the tree. nlohmann's own
// builder with a callback looks at all elements of an array whenever one of them ends, which makes
// its time quadratic.
class TreeBuilder {
 public:
  TreeBuilder(const std::string& label, const JsonLimits& limits)
      : label_(label), limits_(limits), values_left_(limits.values) {}
  ~TreeBuilder() { dismantle(root_); }
  TreeBuilder(const TreeBuilder&) = delete;
  TreeBuilder& operator=(const TreeBuilder&) = delete;

  Json take() { return std::move(root_); }

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
    if (open_.size() == kMaxJsonDepth)
      throw Error(fmt::format("{}: JSON nests deeper than {} levels", where(), kMaxJsonDepth),
                  kWrongFileHint);
    open_.push_back({.value = place(std::move(value))});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // Where the value is in the tree; its address stays until what is around it grows.
  template <typename T>
  Json* place(T&& value) {
    if (values_left_ == 0)
      throw Error(fmt::format("{}: holds more than {} values", label_, limits_.values),
                  kWrongFileHint);
    --values_left_;
    Json* at = &root_;
    if (!open_.empty()) {
      const Open& around = open_.back();
      if (around.value->is_array())
        return &around.value->get_ref<Json::array_t&>().emplace_back(std::forward<T>(value));
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
        path.add_index(open.value->size());  // the element to come
      } else {
        path.add_index(open.value->size() - 1);
      }
    }
    return path.in(label_);
  }

  const std::string& label_;
  const JsonLimits& limits_;
  size_t values_left_;
  Json root_;
  std::vector<Open> open_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& label, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw Error(
        fmt::format("{}: is {} bytes long, expected at most {}", label, text.size(), limits.bytes),
        kWrongFileHint);
  if (text.empty()) throw Error(label + ": is empty, expected JSON", "is the file complete?");
  try {
    TreeBuilder builder(label, limits);
    // With throwing handlers the result is always true.
    Json::sax_parse(text.begin(), text.end(), &builder);
    return builder.take();
  } catch (const std::bad_alloc&) {
    throw Error(label + ": reading it takes more memory than there is",
                "raise the limit on memory (ulimit -v), or free some");
  }
}

}  // namespace sluice::impl
