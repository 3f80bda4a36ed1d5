// The cases of `needle`, checked and counted for the page.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl {

class JsonValue;

// Throws Error unless every case of results of the right types has as many runs as the summary.
void check_needles(const JsonValue& results);

// Replaces the `cases` of checked results by `cells`, one for each task, length and depth: `task`,
// `n_tokens`, `depth`, `n` cases, `dense` of them found, and `runs`, of each choice `found` and
// `lost` (that dense finds). Cells stand in the order of their first cases. Thousands of cases make
// a page of megabytes else.
void count_needles(nlohmann::json& results);

}  // namespace sluice::impl
