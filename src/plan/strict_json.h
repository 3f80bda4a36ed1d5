// JSON from a file read strictly: every refusal is one Error that names the file and the path
// inside it, "plan.json: layers[3].heads[1].tau: 1.7 is outside 0 … 1".

#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::impl {

// How much JSON is taken in. Checked before anything is built of it.
struct JsonLimits {
  size_t bytes, values;
};

// As parse_json (io/json_text.h), and also refuses more than the limits and a key that is there
// twice in one object, of which parse_json would keep the last.
nlohmann::json parse_strict_json(std::string_view text, const std::string& label,
                                 const JsonLimits& limits);

// A value and where it stands. What is null counts as absent, as in config.json.
class StrictValue {
 public:
  // Both must outlive the value and all that is found in it.
  StrictValue(const nlohmann::json& value, const std::string& label)
      : StrictValue(value, label, "") {}

  // Refuses whatever is not an object, and any other key than these.
  void expect_object(std::initializer_list<std::string_view> keys) const;
  std::optional<StrictValue> find(std::string_view key) const;
  StrictValue require(std::string_view key) const;
  // Refuses whatever is not an array of so many elements; `whose` says where the number is from.
  void expect_array(int64_t size, std::string_view whose) const;
  StrictValue at(int64_t index) const;

  int64_t integer(int64_t min, int64_t max) const;
  double number(double min, double max) const;  // JSON has no infinite ones
  double number_from(double min) const;
  bool boolean() const;
  std::string text(size_t max_bytes) const;
  // One of a list of names; `of` gives its value, `names` is the list as a message has it.
  template <typename F>
  auto named(const F& of, std::string_view names) const {
    const auto found = value_->is_string() ? of(value_->get_ref<const std::string&>())
                                           : decltype(of(std::string_view())){};
    if (!found) expected(names);
    return *found;
  }

  // "LABEL: path: VALUE WHAT"
  [[noreturn]] void refuse(const std::string& what, const std::string& hint) const;
  // "LABEL: path: WHAT"
  [[noreturn]] void complain(const std::string& what, const std::string& hint) const;
  const nlohmann::json& json() const { return *value_; }

 private:
  StrictValue(const nlohmann::json& value, const std::string& label, std::string path)
      : value_(&value), label_(&label), path_(std::move(path)) {}
  [[noreturn]] void expected(std::string_view what) const;
  std::string path_of(std::string_view key) const;

  const nlohmann::json* value_;
  const std::string* label_;
  std::string path_;
};

}  // namespace sluice::impl
