#include "io/tokenizer/model_lists.h"

#include <fmt/format.h>

#include "core/error.h"
#include "io/json/path.h"

namespace sluice::impl::tok {

bool ModelLists::takes(std::span<const std::string_view> keys, bool is_array) {
  const bool in_model = keys.size() == 2 && keys[0] == "model";
  const bool is_vocab =
      file_ == File::kVocab ? keys.empty() && !is_array : in_model && keys[1] == "vocab";
  const bool is_merges = file_ == File::kTokenizer && in_model && keys[1] == "merges" && is_array;
  if (!is_vocab && !is_merges) return false;
  // Of a list that is there twice the last counts.
  if (is_merges) {
    list_ = List::kMerges;
    merges = {};
  } else {
    list_ = is_array ? List::kScores : List::kIds;
    texts = {};
    ids.clear();
    scores.clear();
  }
  n_items_ = 0;
  return true;
}

void ModelLists::refuse(std::string_view expected, const Json& found) const {
  JsonPath path;
  if (file_ == File::kTokenizer) {
    path.add_key("model");
    path.add_key(list_ == List::kMerges ? "merges" : "vocab");
  }
  if (list_ == List::kIds)
    path.add_key(key_);
  else
    path.add_index(n_items_ - 1);
  throw Error(
      fmt::format("{}: expected {}, found {}", path.in(label_), expected, describe_json(found)),
      kJsonHint);
}

void ModelLists::value(Json scalar) {
  if (depth_ > 0) {
    // What is longer than a pair is refused when it ends.
    if (depth_ == 1 && element_.size() < 3) element_.push_back(std::move(scalar));
    return;
  }
  ++n_items_;
  add_element(scalar);
}

void ModelLists::open(bool is_array) {
  if (depth_ == 0) {
    ++n_items_;
    element_ = is_array ? Json::array() : Json::object();
    if (list_ == List::kIds || !is_array) add_element(element_);
  } else if (element_.size() < 3) {
    element_.push_back(Json::array());
  }
  ++depth_;
}

void ModelLists::close() {
  if (--depth_ == 0) add_element(element_);
}

void ModelLists::add_element(const Json& element) {
  const bool is_pair = element.is_array() && element.size() == 2 && element[0].is_string();
  switch (list_) {
    case List::kIds: {
      const auto id = as_token_id(element);
      if (!id) refuse(integer_range(0, kMaxTokenId), element);
      texts.add(key_);
      ids.push_back(*id);
      return;
    }
    case List::kScores:
      if (!is_pair || !element[1].is_number()) refuse("a token with its score", element);
      texts.add(element[0].get_ref<const std::string&>());
      scores.push_back(element[1].get<double>());
      return;
    case List::kMerges:
      if (is_pair && element[1].is_string()) {
        merges.add(element[0].get_ref<const std::string&>());
        merges.add(element[1].get_ref<const std::string&>());
        return;
      }
      if (!element.is_string()) refuse("a pair of tokens", element);
      if (!add_merge_line(element.get_ref<const std::string&>()))
        refuse("two tokens with one space between", element);
  }
}

bool ModelLists::add_merge_line(std::string_view line) {
  if (line.starts_with("#version")) return true;
  const size_t space = line.find(' ');
  if (space == line.npos || line.find(' ', space + 1) != line.npos) return false;
  merges.add(line.substr(0, space));
  merges.add(line.substr(space + 1));
  return true;
}

size_t ModelLists::memory() const {
  return texts.memory() + ids.size() * sizeof(int32_t) + scores.size() * sizeof(double) +
         merges.memory();
}

}  // namespace sluice::impl::tok
