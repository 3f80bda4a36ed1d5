// One call of dense attention as data, for the tests of its values, its causality and its threads.

#pragma once

#include <algorithm>

#include "parity/backends.h"

namespace sluice::impl::test {

struct AttendCase {
  int64_t n_tokens, head_dim;
  int64_t first_position = 0;
  int64_t n_heads = 2, n_kv_heads = 2, n_batch = 1;
  bool causal = true;
  int64_t window = 0;
  int64_t pad = 0;   // between the rows of queries and of out
  float size = 1;    // of queries: how sharp the softmax is
  int64_t room = 5;  // for further positions
  float cap = 0;     // of scores

  int64_t n_keys() const { return first_position + n_tokens; }
  int64_t capacity() const { return n_keys() + room; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  Shape rows() const { return {n_batch * n_tokens, n_heads, head_dim}; }
  Shape cache() const { return {n_batch, n_kv_heads, capacity(), head_dim}; }
  // Without tensors.
  AttendDenseArgs args() const {
    return {.queries = {},
            .cache = {},
            .n_tokens = n_tokens,
            .first_position = first_position,
            .causal = causal,
            .window = window,
            .scale = scale(),
            .cap = cap,
            .out = {}};
  }
  size_t cache_at(int64_t batch, int64_t head, int64_t position) const {
    return static_cast<size_t>(((batch * n_kv_heads + head) * capacity() + position) * head_dim);
  }
};

inline void PrintTo(const AttendCase& c, std::ostream* out) {
  *out << c.n_tokens << " tokens from " << c.first_position << ", head_dim " << c.head_dim << ", "
       << c.n_heads << "/" << c.n_kv_heads << " heads, batch " << c.n_batch << ", "
       << (c.causal ? "causal" : "all keys") << ", window " << c.window << ", cap " << c.cap;
}

struct AttendInputs {
  AttendInputs(const AttendCase& c, DType dtype, uint32_t seed = 1)
      : queries(random_values(c.rows().numel(), seed, dtype, c.size)),
        keys(random_values(c.cache().numel(), seed + 1, dtype)),
        values(random_values(c.cache().numel(), seed + 2, dtype)) {
    // Beyond the filled positions nothing may be read.
    for (auto* part : {&keys, &values})
      for (int64_t batch = 0; batch < c.n_batch; ++batch)
        for (int64_t head = 0; head < c.n_kv_heads; ++head)
          std::fill_n(part->begin() + static_cast<int64_t>(c.cache_at(batch, head, c.n_keys())),
                      (c.capacity() - c.n_keys()) * c.head_dim, NAN);
  }
  std::vector<float> queries, keys, values;
};

inline std::vector<float> attend(Backend& backend, DType dtype, const AttendCase& c,
                                 const AttendInputs& in) {
  const DeviceTensor queries(backend, dtype, c.rows(), in.queries, c.pad);
  const DeviceTensor keys(backend, dtype, c.cache(), in.keys);
  const DeviceTensor values(backend, dtype, c.cache(), in.values);
  const DeviceTensor out = unwritten(backend, dtype, c.rows(), c.pad);
  AttendDenseArgs args = c.args();
  args.queries = queries.view();
  args.cache = {keys.view(), values.view()};
  args.out = out.view();
  backend.attend_dense(args);
  return out.values();
}

// Of two answers, relative to the expected one, as vectors; not a number where either has one.
inline double relative_distance(const std::vector<float>& got, const std::vector<float>& expected) {
  double missed = 0, all = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    missed += (double{got[i]} - expected[i]) * (double{got[i]} - expected[i]);
    all += double{expected[i]} * expected[i];
  }
  return std::sqrt(missed / all);
}

}  // namespace sluice::impl::test
