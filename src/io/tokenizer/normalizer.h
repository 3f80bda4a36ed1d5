// Rewrites text before it is split: Unicode forms, case, accents, replacements.

#pragma once

#include <memory>
#include <string>
#include <vector>

namespace sluice::impl {
class JsonValue;
}

namespace sluice::impl::tok {

struct NormalText {
  std::string text;
  // Whether the first character stems from the very beginning of the input; Metaspace's
  // prepend_scheme "first" asks.
  bool at_start = false;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalText& text) const = 0;
};

std::unique_ptr<Normalizer> make_normalizer(const JsonValue& json);

}  // namespace sluice::impl::tok
