#include "io/tokenizer/post_processor.h"

#include <fmt/format.h>

#include "io/tokenizer/json_values.h"

namespace sluice::impl::tok {

namespace {

// {"SpecialToken": {"id": "<s>"}} through {"<s>": {"ids": [1]}}.
std::vector<int32_t> special_ids(const JsonValue& json, const std::string& token) {
  const JsonValue ids = json.at("special_tokens").at(token).at("ids");
  std::vector<int32_t> out;
  for (size_t i = 0; i < ids.array().size(); ++i) {
    out.push_back(token_id(ids.element(i)));
  }
  return out;
}

PostProcessor read_template(const JsonValue& json) {
  constexpr size_t kMostAround = 1024;  // real ones add one or two
  const JsonValue parts = json.at("single");
  std::vector<int32_t> before, after;
  bool seen = false;
  for (size_t i = 0; i < parts.array().size(); ++i) {
    const JsonValue part = parts.element(i);
    if (const auto sequence = part.find("Sequence")) {
      if (sequence->at("id").string() != "A") part.refuse("names a second text");
      if (seen) part.refuse("repeats the text: not supported");
      seen = true;
      continue;
    }
    const std::string& token = part.at("SpecialToken").at("id").string();
    const std::vector<int32_t> ids = special_ids(json, token);
    std::vector<int32_t>& side = seen ? after : before;
    side.insert(side.end(), ids.begin(), ids.end());
    if (side.size() > kMostAround)
      part.refuse(fmt::format("brings the tokens around a text to more than {}", kMostAround));
  }
  if (!seen) parts.refuse("leaves out the text");
  return {std::move(before), std::move(after)};
}

// ["[CLS]", 101]
int32_t id_of_pair(const JsonValue& json) {
  if (json.array().size() != 2) json.expected("a token with its id");
  return token_id(json.element(1));
}

}  // namespace

PostProcessor::PostProcessor(std::vector<int32_t> before, std::vector<int32_t> after)
    : before_(std::move(before)), after_(std::move(after)) {}

PostProcessor PostProcessor::read(const JsonValue& json) {
  const std::string& type = type_of(json);
  if (type == "TemplateProcessing") return read_template(json);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return {{id_of_pair(json.at("cls"))}, {id_of_pair(json.at("sep"))}};
  }
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "Sequence") {
    const JsonValue parts = json.at("processors");
    PostProcessor all;
    for (size_t i = 0; i < parts.array().size(); ++i) {
      const PostProcessor part = read(parts.element(i));
      all.before_.insert(all.before_.begin(), part.before_.begin(), part.before_.end());
      all.after_.insert(all.after_.end(), part.after_.begin(), part.after_.end());
    }
    return all;
  }
  refuse_type(json, type);
}

std::vector<int32_t> PostProcessor::apply(const std::vector<int32_t>& ids) const {
  std::vector<int32_t> out;
  out.reserve(before_.size() + ids.size() + after_.size());
  out.insert(out.end(), before_.begin(), before_.end());
  out.insert(out.end(), ids.begin(), ids.end());
  out.insert(out.end(), after_.begin(), after_.end());
  return out;
}

bool PostProcessor::starts_with(int32_t id) const { return !before_.empty() && before_[0] == id; }

bool PostProcessor::ends_with(int32_t id) const { return !after_.empty() && after_.back() == id; }

}  // namespace sluice::impl::tok
