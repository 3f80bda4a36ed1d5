// A value of a JSON file that can say where it stands. A value of another type or out of range ends
// in one Error: "plan.json: layers[3].tau: expected a number from 0 to 1, found "much"".

#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::impl {

// A value as a message shows it: `12`, `"gelu"`, "an array"; never recursive, never long.
std::string describe_json(const nlohmann::json& value);

// The tree that values belong to.
struct JsonSource {
  const nlohmann::json& root;
  std::string label;  // stands for the file in errors
  std::string hint;   // of errors that have no hint of their own
};

// Two pointers, so values are cheap to make and copy. A path is looked for in the tree only when an
// error needs it. The source and its tree must outlive the value. A bool is not a number, a number
// with a fraction is not an integer.
class JsonValue {
 public:
  using Json = nlohmann::json;
  static constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
  static constexpr double kMaxNumber = std::numeric_limits<double>::max();

  // The root.
  explicit JsonValue(const JsonSource& source) : JsonValue(source.root, source) {}
  // `value` is in the source's tree.
  JsonValue(const Json& value, const JsonSource& source) : value_(&value), source_(&source) {}

  const Json& raw() const { return *value_; }
  const JsonSource& source() const { return *source_; }
  std::string where() const;  // "plan.json: layers[3].tau"

  // Objects. `find` gives nothing for a key that is absent or null.
  const Json::object_t& object() const;
  JsonValue at(std::string_view key) const;
  std::optional<JsonValue> find(std::string_view key) const;
  // Refuses other keys than these.
  void expect_keys(std::initializer_list<std::string_view> keys) const;

  // Arrays.
  const Json::array_t& array() const;
  JsonValue element(size_t i) const { return {array().at(i), *source_}; }
  // Refuses an array of another size; `whose` says where the number is from.
  void expect_size(int64_t size, std::string_view whose) const;

  int64_t integer(int64_t min, int64_t max) const;
  double number(double min = -kMaxNumber, double max = kMaxNumber) const;
  bool boolean() const;
  const std::string& string() const;
  const std::string& string(size_t max_bytes) const;  // not empty either
  // One of a list of names; `of` gives its value, `names` is the list as a message has it.
  template <typename F>
  auto named(const F& of, std::string_view names) const {
    const auto found = value_->is_string() ? of(value_->get_ref<const std::string&>())
                                           : decltype(of(std::string_view())){};
    if (!found) expected(names);
    return *found;
  }

  // What an object has under a key; `otherwise` where that is absent or null.
  int64_t integer_or(std::string_view key, int64_t otherwise, int64_t min, int64_t max) const;
  double number_or(std::string_view key, double otherwise, double min = -kMaxNumber,
                   double max = kMaxNumber) const;
  bool boolean_or(std::string_view key, bool otherwise) const;
  std::string string_or(std::string_view key, std::string_view otherwise) const;

  // "LABEL: path: WHAT"
  [[noreturn]] void refuse(std::string_view what, const std::string& hint = {}) const;
  // "LABEL: path: expected WHAT, found VALUE"
  [[noreturn]] void expected(std::string_view what, const std::string& hint = {}) const;
  // The same of what the object has under a key, or has not.
  [[noreturn]] void expected_at(std::string_view key, std::string_view what,
                                const std::string& hint = {}) const;

 private:
  const Json* value_;
  const JsonSource* source_;
};

// "an integer from 1 to 9", "a number of 0 or more": what `integer` and `number` expect.
std::string integer_range(int64_t min, int64_t max);
std::string number_range(double min, double max);

}  // namespace sluice::impl
