// The layout of results.json, for those who write it and those who read it.

#pragma once

namespace sluice::impl {

// 2: runs[] in every file of analyze, eval and generate, analyze with one row for each layer and
// rule.
inline constexpr int kResultsSchema = 2;

}  // namespace sluice::impl
