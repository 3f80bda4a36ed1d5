// Cuts normalized text into the words the model sees, and spells them as the model expects.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/normalizer.h"

namespace sluice::impl {
class JsonValue;
}

namespace sluice::impl::tok {

using Piece = NormalText;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Replaces every piece by the parts it is cut into; no part is empty.
  virtual void apply(std::vector<Piece>& pieces) const = 0;
};

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonValue& json);

// Cuts at whitespace as Python's str.split() sees it: U+001C to U+001F too.
std::unique_ptr<PreTokenizer> make_python_whitespace_split();

}  // namespace sluice::impl::tok
