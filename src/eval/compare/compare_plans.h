// Plans against exactness, on the same windows of a text in the same run.

#pragma once

#include <functional>
#include <optional>

#include "eval/compare/attention_work.h"
#include "eval/compare/compare.h"
#include "eval/text/text_stream.h"
#include "model/linear_work.h"
#include "model/model.h"
#include "plan/plan.h"

namespace sluice::impl {

struct CompareOptions {
  int64_t max_windows = 0;  // 0: the whole text
  // > 0: so many tokens are also generated, likeliest first, from the first half of each of the
  // first kGenerationWindows windows, and the length of what both have in common is averaged.
  int64_t n_predict = 0;
};
inline constexpr int64_t kGenerationWindows = 4;

struct PlanComparison {
  Comparison tokens;
  AttentionWork work;
  LinearWork linear;
  RunningMean generation_match;             // tokens; empty unless asked for
  RunningMean generation_match_characters;  // the same
  CacheMemory cache;                        // after the last window of full length
  std::vector<float> first_kl;              // of each token of first_tokens after its first
};
// The tokens of the first window whose losses are kept one by one, at most.
inline constexpr int64_t kFirstTokens = 2048;

struct CompareResult {
  int64_t n_windows = 0;
  std::vector<PlanComparison> plans;  // in the order given
  std::vector<int32_t> first_tokens;  // the first window's, kFirstTokens at most
};

// The model runs exactly once per window for all plans. `progress` is called after each window.
// What linear plans need has been prepared.
// Throws Error for an encoder, a text of fewer than two tokens, and generation under `paper`.
CompareResult compare_plans(Model& model, TextStream& text, std::span<const Plan> plans,
                            const CompareOptions& options,
                            const std::function<void(const CompareResult&)>& progress);

}  // namespace sluice::impl
