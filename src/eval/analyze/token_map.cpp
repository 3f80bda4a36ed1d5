#include "eval/analyze/token_map.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/text/token_text.h"
#include "select/rules.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

char letter_of(TokenStatus status) {
  switch (status) {
    case TokenStatus::kRedundant:
      return '.';
    case TokenStatus::kRepresentative:
      return 'R';
    case TokenStatus::kExempt:
      return 'E';
    case TokenStatus::kUncovered:
      return 'U';
  }
  SLUICE_CHECK(!"unnamed status");
}

json layer_json(const TokenMap::Layer& layer, size_t index) {
  std::string status;
  for (const TokenStatus s : layer.status) status += letter_of(s);
  json cosines = json::array();
  for (const float cosine : layer.cosine) cosines.push_back(std::round(double{cosine} * 1e4) / 1e4);
  return {{"layer", index},
          {"status", std::move(status)},
          {"owner", layer.owner},
          {"cosine", std::move(cosines)}};
}

}  // namespace

json token_map_json(const TokenMap& map, const Tokenizer& tokenizer) {
  json texts = json::array();
  for (const int32_t id : map.tokens) texts.push_back(token_text(tokenizer, id));
  json layers = json::array();
  for (size_t l = 0; l < map.layers.size(); ++l) layers.push_back(layer_json(map.layers[l], l));
  return {{"tau", map.tau},
          {"n_tokens", map.tokens.size()},
          {"space", row_space_name(map.space)},
          {"rule", rule_name(map.rule)},
          {"tokens", std::move(texts)},
          {"layers", std::move(layers)}};
}

}  // namespace sluice::impl
