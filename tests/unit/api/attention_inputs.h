// Queries, keys and values for tests of attention on the caller's own numbers.

#pragma once

#include <limits>
#include <random>

#include "unit/api/api_models.h"

namespace sluice::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

struct AttentionInputs {
  AttentionShape shape;
  std::vector<float> q, k, v;

  explicit AttentionInputs(const AttentionShape& of, unsigned seed = 1) : shape(of) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& rows, int64_t n_heads) {
      rows.resize(static_cast<size_t>(shape.capacity * n_heads * shape.head_dim));
      for (float& x : rows) x = normal(random);
    };
    fill(q, shape.n_heads);
    fill(k, shape.n_kv_heads);
    fill(v, shape.n_kv_heads);
  }
  // Tokens [first, first + n) of one of them.
  template <typename Rows>
  static auto part(Rows& rows, int64_t width, int64_t first, int64_t n) {
    return std::span(rows).subspan(static_cast<size_t>(first * width),
                                   static_cast<size_t>(n * width));
  }
  void append(Attention& attention, int64_t n, std::vector<float>& out) const {
    const int64_t first = attention.length(), wide = shape.n_heads * shape.head_dim,
                  narrow = shape.n_kv_heads * shape.head_dim;
    attention.append(part(q, wide, first, n), part(k, narrow, first, n), part(v, narrow, first, n),
                     part(out, wide, first, n));
  }
  std::vector<float> all(Attention& attention) const {
    std::vector<float> out(q.size());
    append(attention, shape.capacity, out);
    return out;
  }
};

inline constexpr AttentionShape kSmall{
    .n_heads = 6, .n_kv_heads = 2, .head_dim = 24, .capacity = 70};
// Some segments of 128 tokens behind a window of 128.
inline constexpr AttentionShape kLong{
    .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .capacity = 700};

inline AttentionOptions refine(double delta, bool strict = false) {
  return {.mode = AttentionMode::kRefine, .delta = delta, .strict = strict};
}

}  // namespace sluice::test
