#include "io/tokenizer/post_processor.h"

#include <fmt/format.h>

#include "core/quote.h"
#include "io/tokenizer/json_reader.h"

namespace sluice::impl::tok {

namespace {

// {"SpecialToken": {"id": "<s>"}} through {"<s>": {"ids": [1]}}.
std::vector<int32_t> special_ids(const JsonReader& json, const std::string& token) {
  const JsonReader table = json.at("special_tokens");
  const auto it = table.object().find(token);
  if (it == table.object().end()) table.refuse("has no " + quote(token));
  const JsonReader ids = JsonReader(it->second, table.where() + "." + quote(token)).at("ids");
  std::vector<int32_t> out;
  for (size_t i = 0; i < ids.array().size(); ++i) {
    const JsonReader id = ids.element(i);
    out.push_back(checked_id(id.raw(), id.where()));
  }
  return out;
}

PostProcessor read_template(const JsonReader& json) {
  const JsonReader parts = json.at("single");
  std::vector<int32_t> before, after;
  bool seen = false;
  for (size_t i = 0; i < parts.array().size(); ++i) {
    const JsonReader part = parts.element(i);
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
  }
  if (!seen) parts.refuse("leaves out the text");
  return {std::move(before), std::move(after)};
}

// ["[CLS]", 101]
int32_t token_id(const JsonReader& json) {
  if (json.array().size() != 2) json.refuse("is not a token with its id");
  return checked_id(json.element(1).raw(), json.element(1).where());
}

}  // namespace

PostProcessor::PostProcessor(std::vector<int32_t> before, std::vector<int32_t> after)
    : before_(std::move(before)), after_(std::move(after)) {}

PostProcessor PostProcessor::read(const JsonReader& json) {
  const std::string& type = json.type();
  if (type == "TemplateProcessing") return read_template(json);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return {{token_id(json.at("cls"))}, {token_id(json.at("sep"))}};
  }
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "Sequence") {
    const JsonReader parts = json.at("processors");
    PostProcessor all;
    for (size_t i = 0; i < parts.array().size(); ++i) {
      const PostProcessor part = read(parts.element(i));
      all.before_.insert(all.before_.begin(), part.before_.begin(), part.before_.end());
      all.after_.insert(all.after_.end(), part.after_.begin(), part.after_.end());
    }
    return all;
  }
  json.refuse(fmt::format("has the type {}, which is not supported", quote(type)));
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
