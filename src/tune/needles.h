// Needle prompts among the windows of a text: a plan that no longer finds one place far back is
// seen, whatever its mean loss.

#pragma once

#include "tune/text_split.h"

namespace sluice::impl {

// Adds one needle window to every eight of calibration and held-out windows each, at least one,
// made of their own text and a unit of its own. The first is the second of all, so that every
// change is looked at in it. Throws Error for a context that is too short.
void add_needles(const Tokenizer& tokenizer, uint32_t seed, TextSplit& split);

}  // namespace sluice::impl
