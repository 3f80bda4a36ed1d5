// How far apart the attention matrices of two representative sets are, in one layer. A set's matrix
// is the paper's equation 1 for all tokens: the row of token t is softmax of its owner's query over
// the keys of the set's members that the owner sees, and zero elsewhere. Members are the tokens
// that are their own owners.

#pragma once

#include <vector>

#include "eval/analyze/profile_attention.h"

namespace sluice::impl {

// Queries and keys of one layer, on the host.
struct AttentionScores {
  int64_t n_tokens, n_heads, n_kv_heads, head_dim;
  bool causal;
  int64_t window;  // of a sliding window, 0 for none
  float scale, cap;
  std::vector<float> queries;  // (n_tokens, n_heads, head_dim)
  std::vector<float> keys;     // (n_tokens, n_kv_heads, head_dim)
};
AttentionScores attention_scores(Backend& backend, const ModelSpec& spec,
                                 const AttentionSeen& seen);

// The row of token t in a head's matrix, (n_tokens); nullptr: of dense attention.
std::vector<double> matrix_row(const AttentionScores& scores, int64_t head, int64_t t,
                               const TokenSet* set);

// Rows that are compared in a window: evenly spaced tokens up to the last one, at most this many,
// so that the time grows with T and not with T².
inline constexpr int64_t kMatrixRows = 64;

// Adds to each set, for the query heads given: the total variation distance of its rows from those
// of sets[kIndependentSet] and from dense ones, half the sum of absolute differences, as a mean
// over rows and heads; and the Frobenius norm of the differences over that of the other's rows.
void measure_matrices(const AttentionScores& scores, HeadRange heads,
                      const std::vector<TokenSet>& sets, std::vector<SetFigures>& to);

}  // namespace sluice::impl
