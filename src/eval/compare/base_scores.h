// The exact model's scores of some rows, for others to be compared with, where the model is: scores
// of a vocabulary are too many to be fetched from a device.

#pragma once

#include <span>
#include <vector>

#include "eval/compare/compare.h"
#include "model/model.h"

namespace sluice::impl {

class BaseScores {
 public:
  BaseScores(Model& model, int64_t n_rows);
  // Of one score: what is kept of it.
  static constexpr int64_t kBytes = sizeof(float) + sizeof(double);

  // hidden: of the exact model, for rows first …
  void set(int64_t first, const ConstTensor& hidden);
  // hidden: of another for the same rows, at most kScoreRows, which `next` follow.
  std::span<const TokenComparison> compare(int64_t first, const ConstTensor& hidden,
                                           std::span<const int32_t> next);

 private:
  Model& model_;
  bool on_host_;
  Buffer base_;                         // (n_rows, vocab)
  Buffer scores_;                       // (kScoreRows, vocab)
  std::vector<BaseRow> rows_;           // (n_rows), on the host
  std::vector<TokenComparison> found_;  // (kScoreRows)
};

}  // namespace sluice::impl
