#include "io/json_text.h"

#include "core/quote.h"

namespace sluice::impl {

Error json_error(const std::string& label, const std::exception& error) {
  std::string_view text = error.what();
  if (const auto end = text.find("] "); text.starts_with("[json.exception") && end != text.npos)
    text.remove_prefix(end + 2);
  std::string line;
  for (const char c : text) line += c >= 0x20 && c < 0x7f ? c : '?';
  if (line.size() > 200) line = line.substr(0, 200) + "...";
  return Error(label + ": not valid JSON: " + line, "is the file complete?");
}

nlohmann::json parse_json(std::string_view text, const std::string& label) {
  constexpr int kMaxDepth = 64;  // a tokenizer.json needs about ten
  if (text.empty()) throw Error(label + ": is empty, expected JSON", "is the file complete?");
  const auto check_depth = [&label](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kMaxDepth)
      throw Error(label + ": JSON nests deeper than " + std::to_string(kMaxDepth) + " levels",
                  "is this the right file?");
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check_depth);
  } catch (const nlohmann::json::exception& error) {
    throw json_error(label, error);
  }
}

std::string describe_json(const nlohmann::json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (value.is_string()) {
    std::string text = quote(value.get_ref<const std::string&>());
    text.front() = '"';
    text.back() = '"';
    return text;
  }
  return value.dump();  // null, a bool or a number
}

}  // namespace sluice::impl
