// Plans of an encoder against exactness: masked tokens, and hidden rows layer by layer.

#pragma once

#include <span>
#include <vector>

#include "eval/compare/running_mean.h"
#include "eval/text/masked_windows.h"
#include "model/model.h"
#include "plan/plan.h"

namespace sluice::impl {

struct PlanWindow;

// A row x' of a plan against the exact row x of the same token.
struct RowError {
  double cosine;    // x · x' / (‖x‖ ‖x'‖)
  double relative;  // ‖x - x'‖ / ‖x‖
};
// Rows of zeros are left out.
std::vector<RowError> row_errors(std::span<const float> exact, std::span<const float> other,
                                 int64_t width);

// Of many rows.
struct RowErrors {
  RunningMean cosine, relative;

  void add(std::span<const RowError> rows);
};

struct MaskedFigures {
  RunningMean base_right, right;  // 1 where the token behind a mask is found likeliest
  std::vector<RowErrors> layers;  // (n_layers) of what a layer's MLP reads: after its attention
  RowErrors hidden;               // after the last layer and norm
};

// The same of one window, number by number.
struct MaskedWindow {
  std::vector<uint8_t> base_right, right;     // (n_masks)
  std::vector<std::vector<RowError>> layers;  // (n_layers)
  std::vector<RowError> hidden;

  void add_to(MaskedFigures& figures) const;

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(base_right, right, layers, hidden);
  }
};

// Compares plans in windows of one length or less. The model must outlive it.
class MaskedComparer {
 public:
  MaskedComparer(Model& model, std::span<const Plan> plans) : model_(model), plans_(plans) {}

  // What every plan did with the window's masked tokens and rows.
  std::vector<PlanWindow> compare(const MaskedWindows& window);

 private:
  // What one pass over a window leaves, in host memory.
  struct Seen {
    std::vector<std::vector<float>> layers;  // (n_layers) of (n_tokens, d_model)
    std::vector<float> hidden;               // (n_tokens, d_model)
    std::vector<float> scores;               // (n_masks, vocab)
  };
  Seen run(const MaskedWindows& window, KvCache& cache);
  void add_scores(const MaskedWindows& window, const Seen& exact, const Seen& other,
                  PlanWindow& to) const;

  Model& model_;
  std::span<const Plan> plans_;
};

}  // namespace sluice::impl
