// How far a token's attention output is from its owner's, against the bound of the paper's
// Proposition 2:
//
//   ||Attn_h(t) - Attn_h(s)|| <= distance * (||W_Q||_2 ||K||_F scale + ||W_V||_2) * ||x_t||
//
// x_t is the row that W_Q and W_V multiply: after the norm in pre-norm models. `distance` is tau by
// the paper; of the unit rows it is at most sqrt(2) * tau.

#pragma once

#include "eval/analyze/profile.h"
#include "model/model.h"

namespace sluice::impl {

// Largest singular value of a row-major matrix, by power iteration to 1e-6 of itself, from below.
double spectral_norm(std::span<const float> matrix, int64_t n_columns);

// Spectral norms of every head's rows of the stored query and value matrices.
struct ProjectionNorms {
  std::vector<std::vector<double>> query;  // (n_layers, n_heads)
  std::vector<std::vector<double>> value;  // (n_layers, n_kv_heads)
};
ProjectionNorms projection_norms(const Checkpoint& checkpoint);

// What one layer's attention gave, on the host.
struct AttentionOutputs {
  int64_t n_tokens, n_heads, head_dim;
  std::vector<float> attended;          // (n_tokens, n_heads, head_dim)
  std::vector<double> input_norms;      // (n_tokens)  ||x_t||
  std::vector<double> bound_per_input;  // (n_heads)   the bound at distance 1 and ||x_t|| = 1
};
// Throws Error for activations that are not finite.
AttentionOutputs attention_outputs(Backend& backend, const ModelSpec& spec,
                                   const ProjectionNorms& norms, const AttentionSeen& seen);

// Query heads [first, first + count): errors over all tokens outside a set that have an owner (all
// that Definition 1 calls redundant), the bound over those whose owner is at the threshold, which
// the proposition asks for. Adds one number to each figure, or none where there is no such token.
// with_bound: not where the set's cosines are of other rows than a function of x_t.
struct HeadRange {
  int64_t first, count;
};
void measure_attention(const AttentionOutputs& outputs, HeadRange heads, const TokenSet& set,
                       bool with_bound, SetFigures& to);

}  // namespace sluice::impl
