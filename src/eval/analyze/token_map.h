// Which tokens of a text stand for which others, layer by layer: what a reader can look at.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/analyze/profile.h"
#include "io/tokenizer/tokenizer.h"

namespace sluice::impl {

// The leading set of every layer over one window.
struct TokenMap {
  struct Layer {  // every vector is (n_tokens); as in TokenSet
    std::vector<TokenStatus> status;
    std::vector<int32_t> owner;
    std::vector<float> cosine;

    template <typename Archive>
    void transfer(Archive& archive) {
      archive(status, owner, cosine);
    }
  };

  double tau = 0;
  RowSpace space = RowSpace::kResidual;
  SelectRule rule = SelectRule::kCascadeCover;
  std::vector<int32_t> tokens;  // (n_tokens) ids
  std::vector<Layer> layers;    // (n_layers)

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(tau, space, rule, tokens, layers);
  }
};

// The `map` of results.json: docs/results.md, "analyze".
nlohmann::json token_map_json(const TokenMap& map, const Tokenizer& tokenizer);

}  // namespace sluice::impl
