#include "report/shape.h"

#include "core/error.h"
#include "io/json/value.h"
#include "report/shape_texts.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

// All of them by name.
const Json& shapes() {
  static const Json all = [] {
    Json joined = Json::object();
    for (const std::string_view text : shape_texts()) {
      const Json part = Json::parse(text);
      for (const auto& [name, shape] : part.items()) {
        SLUICE_CHECK(!joined.contains(name));
        joined[name] = shape;
      }
    }
    return joined;
  }();
  return all;
}

// One that a browser's numbers hold exactly.
constexpr int64_t kMaxInteger = int64_t{1} << 53;

void check(const JsonValue& value, const Json& shape);

void check_object(const JsonValue& value, const Json& shape) {
  for (const auto& [name, inner] : shape.items()) {
    if (name == "*") continue;
    const bool optional = name.ends_with('?');
    const std::string_view key = std::string_view(name).substr(0, name.size() - optional);
    if (!optional)
      check(value.at(key), inner);
    else if (const auto found = value.find(key))
      check(*found, inner);
  }
  if (const auto rest = shape.find("*"); rest != shape.end())
    for (const auto& [key, inner] : value.object())
      if (!inner.is_null() && !shape.contains(key) && !shape.contains(key + "?"))
        check(JsonValue(inner, value.source()), *rest);
}

void check(const JsonValue& value, const Json& shape) {
  if (shape.is_object()) {
    value.object();  // refuses whatever is not one, also where no key is required
    return check_object(value, shape);
  }
  if (shape.is_array()) {
    for (const Json& element : value.array()) check(JsonValue(element, value.source()), shape[0]);
    return;
  }
  const auto& type = shape.get_ref<const std::string&>();
  if (type == "text") {
    value.string();
  } else if (type == "number") {
    value.number();
  } else if (type == "share") {
    value.number(0, 1);
  } else if (type == "flag") {
    value.boolean();
  } else if (type == "integer") {
    value.integer(-kMaxInteger, kMaxInteger);
  } else if (type.ends_with('?')) {
    const Json inner = type.substr(0, type.size() - 1);
    if (!value.raw().is_null()) check(value, inner);
  } else {
    check(value, shapes().at(type));
  }
}

}  // namespace

bool has_shape(std::string_view name) { return shapes().contains(name); }

void check_shape(const JsonValue& value, std::string_view name) {
  if (const auto shape = shapes().find(name); shape != shapes().end()) check(value, *shape);
}

}  // namespace sluice::impl
