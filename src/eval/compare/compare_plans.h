// Plans against exactness, on the same windows of a text in the same run.

#pragma once

#include <functional>
#include <optional>

#include "eval/compare/attention_work.h"
#include "eval/compare/compare.h"
#include "eval/compare/masked.h"
#include "eval/compare/paired.h"
#include "eval/text/text_stream.h"
#include "model/linear_work.h"
#include "model/model.h"
#include "plan/plan.h"
#include "ranks/communicator.h"

namespace sluice::impl {

struct CompareOptions {
  int64_t max_windows = 0;  // 0: the whole text
  // > 0: so many tokens are also generated, likeliest first, from the first half of each of the
  // first kGenerationWindows windows, and the length of what both have in common is averaged.
  int64_t n_predict = 0;
  MaskOptions mask = {};                  // of an encoder, whose masked tokens are compared
  Communicator* communicator = &alone();  // that windows are divided over
};
inline constexpr int64_t kGenerationWindows = 4;

// Sums over the tokens of one window.
struct WindowLoss {
  double kl = 0, loss = 0, base_loss = 0;
  int64_t n_tokens = 0;
};

// What a plan did in one window.
struct PlanWindow {
  std::vector<TokenComparison> tokens;
  AttentionWork work;
  LinearWork linear;
  CacheMemory cache;
  struct Match {
    double tokens, characters;
  };
  std::optional<Match> generation;     // where it was asked for
  std::optional<MaskedWindow> masked;  // of an encoder

  void add_work(const KvCache& cache, const ModelSpec& spec);

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(tokens, work, linear, cache, generation, masked);
  }
};

struct PlanComparison {
  Comparison tokens;
  std::vector<WindowLoss> windows;
  AttentionWork work;
  LinearWork linear;
  RunningMean generation_match;             // tokens; empty unless asked for
  RunningMean generation_match_characters;  // the same
  CacheMemory cache;                        // after the last window of full length
  std::vector<float> first_kl;              // of each token of first_tokens after its first
  std::optional<MaskedFigures> masked;      // of an encoder

  // n_first: tokens of this window whose KL is kept.
  void add(const PlanWindow& window, size_t n_first);
};
// The tokens of the first window whose losses are kept one by one, at most.
inline constexpr int64_t kFirstTokens = 2048;

struct CompareResult {
  int64_t n_windows = 0;
  std::vector<PlanComparison> plans;  // in the order given
  std::vector<int32_t> first_tokens;  // the first window's, kFirstTokens at most; not an encoder's
};

// Paired over windows (paired.h): the loss of a plan less the exact model's, and a plan's KL and
// loss less another's. Nothing where windows are too few.
std::optional<PairedInterval> paired_log_ratio(const PlanComparison& plan);
std::optional<PairedInterval> paired_kl(const PlanComparison& plan, const PlanComparison& other);
std::optional<PairedInterval> paired_loss(const PlanComparison& plan, const PlanComparison& other);

// The model runs exactly once per window for all plans. Windows are divided over ranks; every rank
// returns the same. `progress` is called after each window.
// What linear plans need has been prepared.
// A causal model predicts every token from those before it, an encoder the tokens behind masks.
// Throws Error for a text of fewer than two tokens, an encoder without a head or whose tokenizer
// has no mask, and generation under `paper` or of an encoder.
CompareResult compare_plans(Model& model, TextStream& text, std::span<const Plan> plans,
                            const CompareOptions& options,
                            const std::function<void(const CompareResult&)>& progress);

}  // namespace sluice::impl
