// The refusal of scores that are no numbers.

#pragma once

#include "core/error.h"

namespace sluice::impl {

// A type of its own: whoever knows the path of the model adds it.
class ScoresError : public Error {
 public:
  ScoresError()
      : Error("the model's scores are not finite",
              "are the weights damaged, or their values too large for this dtype?") {}
};

}  // namespace sluice::impl
