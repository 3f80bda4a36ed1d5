#include "plan/strict_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/quote.h"
#include "io/json_text.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

constexpr const char* kHint = "docs/plan.md says what a plan looks like";

// A key as a path has it: safe to print, without quotes.
std::string shown_key(std::string_view key) {
  const std::string text = quote(key);
  return text.substr(1, text.size() - 2);
}

// Passes over the text and builds nothing: the tree of a small text of many empty arrays is large.
class Scan final : public nlohmann::json_sax<Json> {
 public:
  Scan(const std::string& label, size_t max_values) : label_(label), values_left_(max_values) {}

  bool null() override { return leaf(); }
  bool boolean(bool) override { return leaf(); }
  bool number_integer(Json::number_integer_t) override { return leaf(); }
  bool number_unsigned(Json::number_unsigned_t) override { return leaf(); }
  bool number_float(Json::number_float_t, const std::string&) override { return leaf(); }
  bool string(std::string&) override { return leaf(); }
  bool binary(Json::binary_t&) override { return leaf(); }
  bool start_object(size_t) override { return begin(/*array=*/false); }
  bool end_object() override { return end(); }
  bool start_array(size_t) override { return begin(/*array=*/true); }
  bool end_array() override { return end(); }
  bool key(std::string& name) override {
    open_.back().key = name;
    if (!open_.back().keys.insert(name).second)
      throw Error(where() + ": is there twice", "leave one of them out");
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    throw json_error(where(), error);
  }

 private:
  struct Open {
    bool array = false;
    size_t index = 0;  // of the element to come
    std::string key = {};
    std::set<std::string> keys = {};
  };

  bool leaf() {
    count();
    return done();
  }
  bool begin(bool array) {
    constexpr size_t kMaxDepth = 64;  // parse_json's
    count();
    if (open_.size() == kMaxDepth)
      throw Error(fmt::format("{}: JSON nests deeper than {} levels", where(), kMaxDepth), kHint);
    open_.push_back({.array = array});
    return true;
  }
  bool end() {
    open_.pop_back();
    return done();
  }
  bool done() {
    if (!open_.empty() && open_.back().array) ++open_.back().index;
    return true;
  }
  void count() {
    if (values_left_-- == 0) throw Error(label_ + ": holds too many values", kHint);
  }

  std::string where() const {
    constexpr size_t kMaxShown = 200;
    std::string path;
    for (const Open& open : open_) {
      if (open.array)
        path += fmt::format("[{}]", open.index);
      else if (!open.keys.empty())
        path += (path.empty() ? "" : ".") + shown_key(open.key);
    }
    if (path.size() > kMaxShown) path = "..." + path.substr(path.size() - kMaxShown);
    return path.empty() ? label_ : label_ + ": " + path;
  }

  const std::string& label_;
  size_t values_left_;
  std::vector<Open> open_;  // objects and arrays around what comes next
};

}  // namespace

Json parse_strict_json(std::string_view text, const std::string& label, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw Error(
        fmt::format("{}: is {} bytes long, expected at most {}", label, text.size(), limits.bytes),
        "is this the right file?");
  Scan scan(label, limits.values);
  if (!text.empty()) Json::sax_parse(text.begin(), text.end(), &scan);
  return parse_json(text, label);
}

std::string StrictValue::path_of(std::string_view key) const {
  return (path_.empty() ? "" : path_ + ".") + shown_key(key);
}

void StrictValue::complain(const std::string& what, const std::string& hint) const {
  throw Error(fmt::format("{}: {}{}", *label_, path_.empty() ? "" : path_ + ": ", what), hint);
}

void StrictValue::refuse(const std::string& what, const std::string& hint) const {
  complain(describe_json(*value_) + " " + what, hint);
}

void StrictValue::expected(std::string_view what) const {
  complain(fmt::format("is {}, expected {}", describe_json(*value_), what), kHint);
}

void StrictValue::expect_object(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) expected("an object");
  for (const auto& [key, inner] : value_->items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      StrictValue(inner, *label_, path_of(key))
          .complain("is no field of a plan", fmt::format("known here: {}", fmt::join(keys, ", ")));
}

std::optional<StrictValue> StrictValue::find(std::string_view key) const {
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return {};
  return StrictValue(*found, *label_, path_of(key));
}

StrictValue StrictValue::require(std::string_view key) const {
  if (const auto found = find(key)) return *found;
  complain(fmt::format("has no `{}`", key), kHint);
}

void StrictValue::expect_array(int64_t size, std::string_view whose) const {
  if (!value_->is_array()) expected("an array");
  if (std::ssize(*value_) != size)
    complain(fmt::format("has {} elements, {} is {}", value_->size(), whose, size), kHint);
}

StrictValue StrictValue::at(int64_t index) const {
  return {(*value_)[static_cast<size_t>(index)], *label_, fmt::format("{}[{}]", path_, index)};
}

int64_t StrictValue::integer(int64_t min, int64_t max) const {
  if (!value_->is_number_integer()) expected("an integer");
  // As double: the library turns an unsigned number that is too large into a negative one.
  const bool huge = value_->get<double>() > 9e18;
  const auto number = value_->get<int64_t>();
  if (huge || number < min || number > max)
    refuse(fmt::format("is outside {} … {}", min, max), kHint);
  return number;
}

double StrictValue::number(double min, double max) const {
  if (!value_->is_number()) expected("a number");
  const auto number = value_->get<double>();
  if (!(number >= min && number <= max)) refuse(fmt::format("is outside {} … {}", min, max), kHint);
  return number;
}

double StrictValue::number_from(double min) const {
  if (!value_->is_number()) expected("a number");
  const auto number = value_->get<double>();
  if (!(number >= min)) refuse(fmt::format("is below {}", min), kHint);
  return number;
}

bool StrictValue::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

std::string StrictValue::text(size_t max_bytes) const {
  if (!value_->is_string()) expected("text");
  const auto& text = value_->get_ref<const std::string&>();
  if (text.empty() || text.size() > max_bytes)
    complain(fmt::format("is {} bytes of text, expected 1 to {}", text.size(), max_bytes), kHint);
  return text;
}

}  // namespace sluice::impl
