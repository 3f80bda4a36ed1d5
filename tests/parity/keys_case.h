// One sequence through attention of mode `keys` as data, and the error it may have.

#pragma once

#include <numeric>

#include "parity/attend_case.h"
#include "parity/compare.h"
#include "parity/token_sets.h"

namespace sluice::impl::test {

struct KeysCase {
  int64_t n_tokens, head_dim;
  int64_t n_heads = 2, n_kv_heads = 2;
  int64_t window = 32, block = 16;
  std::vector<HeadKeys> heads = {};  // empty: centroids of set 0 and of set 1 alternately
  SetShape set = {};
  bool causal = true;
  float size = 1;   // of queries: how sharp the softmax is
  int64_t pad = 0;  // between rows

  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  Shape queries() const { return {n_tokens, n_heads, head_dim}; }
  Shape keys() const { return {n_tokens, n_kv_heads, head_dim}; }
  KeysSpec spec(DType dtype) const {
    KeysSpec spec{.n_heads = n_heads,
                  .n_kv_heads = n_kv_heads,
                  .head_dim = head_dim,
                  .dtype = dtype,
                  .scale = scale(),
                  .causal = causal,
                  .window = window,
                  .block = block,
                  .heads = heads};
    for (size_t i = 0; heads.empty() && i < static_cast<size_t>(n_kv_heads); ++i)
      spec.heads.push_back({HeadKind::kClusters, FarKey::kCentroid, i % 2});
    return spec;
  }
};

inline void PrintTo(const KeysCase& c, std::ostream* out) {
  *out << c.n_tokens << " tokens, head_dim " << c.head_dim << ", " << c.n_heads << "/"
       << c.n_kv_heads << " heads, window " << c.window << ", block " << c.block << ", "
       << (c.causal ? "causal" : "all keys") << ", reps " << c.set.reps;
}

// F(t) of docs/algorithm.md, section 3.
inline int64_t border_of(const KeysCase& c, int64_t t) {
  return c.block * (std::max<int64_t>(0, t - c.window) / c.block);
}

struct KeysInputs {
  KeysInputs(const KeysCase& c, DType dtype, uint32_t seed = 1)
      : queries(random_values(c.queries().numel(), seed, dtype, c.size)),
        keys(random_values(c.keys().numel(), seed + 1, dtype)),
        values(random_values(c.keys().numel(), seed + 2, dtype)) {
    SetShape fewer = c.set;
    fewer.reps /= 4;
    sets = {random_set(c.n_tokens, c.set, seed + 3, !c.causal),
            random_set(c.n_tokens, fewer, seed + 4, !c.causal)};
  }
  std::vector<float> queries, keys, values;
  std::vector<TokenSet> sets;
};

// Rows [first, last) of a tensor (n_tokens, width).
inline std::vector<float> rows_of(const std::vector<float>& all, int64_t width, int64_t first,
                                  int64_t last) {
  return {all.begin() + first * width, all.begin() + last * width};
}

inline std::vector<float> attend_pass(KeysAttention& attention, Backend& backend, DType dtype,
                                      const KeysCase& c, const KeysInputs& in, int64_t first,
                                      int64_t last) {
  const int64_t n = last - first, wide = c.n_heads * c.head_dim, narrow = c.n_kv_heads * c.head_dim;
  const DeviceTensor queries(backend, dtype, {n, c.n_heads, c.head_dim},
                             rows_of(in.queries, wide, first, last), c.pad);
  const DeviceTensor keys(backend, dtype, {n, c.n_kv_heads, c.head_dim},
                          rows_of(in.keys, narrow, first, last), c.pad);
  const DeviceTensor values(backend, dtype, {n, c.n_kv_heads, c.head_dim},
                            rows_of(in.values, narrow, first, last), c.pad);
  const DeviceTensor out = unwritten(backend, dtype, {n, c.n_heads, c.head_dim}, c.pad);
  std::vector<TokenSet> sets = in.sets;
  if (last < c.n_tokens)
    for (TokenSet& set : sets) set = start_of(set, last);
  attention.attend({.queries = queries.view(),
                    .keys = keys.view(),
                    .values = values.view(),
                    .sets = sets,
                    .out = out.view()});
  return out.values();
}

// `cuts`: where a pass ends and the next begins, ascending.
inline std::vector<float> attend_keys(Backend& backend, DType dtype, const KeysCase& c,
                                      const KeysInputs& in, std::vector<int64_t> cuts = {}) {
  const auto attention = backend.make_keys_attention(c.spec(dtype));
  std::vector<float> out;
  cuts.push_back(c.n_tokens);
  int64_t first = 0;
  for (const int64_t last : cuts) {
    const auto part = attend_pass(*attention, backend, dtype, c, in, first, last);
    out.insert(out.end(), part.begin(), part.end());
    first = last;
  }
  return out;
}

// What exact attention answers, by the reference.
inline std::vector<float> attend_dense(Backend& reference, const KeysCase& c,
                                       const KeysInputs& in) {
  const AttendCase dense{.n_tokens = c.n_tokens,
                         .head_dim = c.head_dim,
                         .n_heads = c.n_heads,
                         .n_kv_heads = c.n_kv_heads,
                         .causal = c.causal};
  AttendInputs cache(dense, DType::kF32);
  cache.queries = in.queries;
  for (int64_t t = 0; t < c.n_tokens; ++t)
    for (int64_t head = 0; head < c.n_kv_heads; ++head) {
      const int64_t from = (t * c.n_kv_heads + head) * c.head_dim;
      const auto to = static_cast<int64_t>(dense.cache_at(0, head, t));
      std::copy_n(in.keys.begin() + from, c.head_dim, cache.keys.begin() + to);
      std::copy_n(in.values.begin() + from, c.head_dim, cache.values.begin() + to);
    }
  return attend(reference, DType::kF32, dense, cache);
}

// The sizes that an error bound of attention is made of.
struct SoftmaxSizes {
  int64_t head_dim;
  int64_t n_keys;  // summed at most
  double score;    // no |q . k * scale| is larger
  bool means;      // keys and values are means of up to n_keys tokens
};

// Error of out = sum p v relative to sum p |v|. As for dense attention (attend_dense_test.cpp): a
// score errs by its dot product and 2 roundings, exp by 2 units in the last place and the rounding
// of its argument, so each weight relatively by `weight`; numerator and denominator sum them, and
// each tile of keys (at least 16) rescales both; weights that pass through bf16 err by its unit.
// Here scores also get log count: 2 units in its last place, and it lengthens the argument of exp.
// A mean of m rows, summed or running, errs by 2 roundings for each of them and is stored in dtype.
inline double attention_error(DType dtype, const SoftmaxSizes& sizes) {
  const auto n = static_cast<double>(sizes.n_keys);
  const double narrow = dtype == DType::kBF16 ? kBF16Unit : 0, log_count = std::log(n);
  const double mean = sizes.means ? 2 * (n + 2) * kF32Unit + narrow : 0;
  const double weight = dot_error(dtype, sizes.head_dim, sizes.score) + mean * sizes.score +
                        (6 + 2 * sizes.score + 4 * log_count) * kF32Unit;
  const double sums = (2 * n + 4 * (n / 16 + 1) + 8) * sum_unit(dtype);
  return 2 * weight + sums + narrow + mean;
}

inline double largest_row_norm(const std::vector<float>& rows, int64_t d) {
  double largest = 0;
  for (auto row = rows.begin(); row != rows.end(); row += d)
    largest = std::max(largest, std::inner_product(row, row + d, row, 0.0));
  return std::sqrt(largest);
}

// Bound of every element; `expected` is the reference's answer.
inline std::vector<double> keys_bounds(Backend& reference, DType dtype, const KeysCase& c,
                                       const KeysInputs& in, const std::vector<float>& expected) {
  KeysInputs magnitudes = in;
  magnitudes.values = absolute(in.values);
  const auto size = attend_keys(reference, DType::kF32, c, magnitudes);
  const double error =
      attention_error(dtype, {.head_dim = c.head_dim,
                              .n_keys = c.n_tokens,
                              .score = largest_row_norm(in.queries, c.head_dim) *
                                       largest_row_norm(in.keys, c.head_dim) * double{c.scale()},
                              .means = true});
  std::vector<double> bounds;
  for (size_t i = 0; i < expected.size(); ++i)
    bounds.push_back(stored_error(dtype, expected[i], error * double{size[i]}));
  return bounds;
}

}  // namespace sluice::impl::test
