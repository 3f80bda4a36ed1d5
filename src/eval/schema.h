// The layout of results.json, for those who write it and those who read it.

#pragma once

namespace sluice::impl {

inline constexpr int kResultsSchema = 1;

}  // namespace sluice::impl
