// How two models' scores of the same rows differ.

#pragma once

#include <span>

#include "core/tensor.h"

namespace sluice::impl {

// At one position; logarithms are natural.
struct TokenComparison {
  double base_loss, loss;  // -log p(the token that follows)
  double kl;               // KL(base || other) over the vocabulary
  double delta_p;          // p(the token that follows): other - base
  bool same_top;           // both find the same token likeliest; ties go to the smaller id
};

struct CompareScoresArgs {
  ConstTensor base, scores;        // (n_rows, vocab) f32
  std::span<const int32_t> next;   // (n_rows), the tokens that follow; host memory
  std::span<TokenComparison> out;  // (n_rows), host memory
};

}  // namespace sluice::impl
