// Models for tests of the public API: tiny ones of every family with a tokenizer of letters, and
// the demo's, whose context is long enough for clusters.

#pragma once

#include <filesystem>
#include <vector>

#include "cli/model_folder.h"
#include "paths.h"
#include "sluice/sluice.h"
#include "unit/test_files.h"

namespace sluice::test {

using impl::test::expect_error;
using impl::test::letter_text;
using impl::test::ModelFolder;
using impl::test::read_bytes;
using impl::test::TempDir;

inline std::filesystem::path demo_folder() { return impl::test::share_dir() / "demo"; }
inline std::filesystem::path demo_model() { return demo_folder() / "gpt2-nano"; }
inline std::filesystem::path demo_text() { return demo_folder() / "text.txt"; }

// The first tokens of the demo's text.
inline std::vector<int32_t> demo_tokens(const Model& model, size_t n) {
  std::vector<int32_t> tokens = model.tokenize(read_bytes(demo_text()));
  tokens.resize(n);
  return tokens;
}

// Float32 sums in another order: docs/architecture.md, "Numbers".
inline constexpr double kRoundOff = 2e-5;

inline double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}
inline double range_of(std::span<const float> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return double{*high} - *low;
}
inline void expect_alike(std::span<const float> a, std::span<const float> b) {
  EXPECT_LE(largest_difference(a, b), kRoundOff * range_of(b));
}

}  // namespace sluice::test
