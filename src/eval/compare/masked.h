// Plans of an encoder against exactness: masked tokens, and hidden rows layer by layer.

#pragma once

#include <span>
#include <vector>

#include "eval/compare/running_mean.h"
#include "eval/text/masked_windows.h"
#include "model/model.h"
#include "plan/plan.h"

namespace sluice::impl {

struct CompareResult;

// Rows x' of a plan against the exact rows x of the same tokens; a row of zeros is left out.
struct RowErrors {
  RunningMean cosine;    // x · x' / (‖x‖ ‖x'‖)
  RunningMean relative;  // ‖x - x'‖ / ‖x‖

  void add(std::span<const float> exact, std::span<const float> other, int64_t width);
};

struct MaskedFigures {
  RunningMean base_right, right;  // 1 where the token behind a mask is found likeliest
  std::vector<RowErrors> layers;  // (n_layers) of what a layer's MLP reads: after its attention
  RowErrors hidden;               // after the last layer and norm
};

// Compares plans in windows of one length or less. The model must outlive it.
class MaskedComparer {
 public:
  MaskedComparer(Model& model, std::span<const Plan> plans) : model_(model), plans_(plans) {}

  // Adds the window's masked tokens, work and rows to every plan of the result.
  void compare(const MaskedWindows& window, CompareResult& result);

 private:
  // What one pass over a window leaves, in host memory.
  struct Seen {
    std::vector<std::vector<float>> layers;  // (n_layers) of (n_tokens, d_model)
    std::vector<float> hidden;               // (n_tokens, d_model)
    std::vector<float> scores;               // (n_masks, vocab)
  };
  Seen run(const MaskedWindows& window, KvCache& cache);
  void add_scores(const MaskedWindows& window, const Seen& exact, const Seen& other, size_t plan,
                  CompareResult& result) const;

  Model& model_;
  std::span<const Plan> plans_;
};

}  // namespace sluice::impl
