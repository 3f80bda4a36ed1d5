// Exact attention, docs/algorithm.md section 3, mode `dense`.

#include <algorithm>
#include <cmath>

#include "backend/reference/attention/attention.h"
#include "backend/reference/common/values.h"

namespace sluice::impl::reference::attention {
namespace {

// Row index of a cache seen as (n_batch * n_kv_heads * capacity) rows of head_dim.
ConstTensor as_rows(const Tensor& cache) {
  const Shape& s = cache.shape();
  return cache.reshaped({s[0] * s[1] * s[2], s[3]});
}

}  // namespace

void store_kv(const StoreKvArgs& args) {
  const Shape& s = args.cache.keys.shape();
  const int64_t n_kv_heads = s[1], capacity = s[2], head_dim = s[3];
  for (int64_t r = 0; r < args.keys.rows(); ++r) {
    const int64_t batch = r / args.n_tokens, position = args.first_position + r % args.n_tokens;
    SLUICE_CHECK(batch < s[0] && position < capacity);
    for (int64_t head = 0; head < n_kv_heads; ++head) {
      const int64_t row = (batch * n_kv_heads + head) * capacity + position;
      for (int64_t i = 0; i < head_dim; ++i) {
        const auto flat = [&](const Tensor& t) { return t.reshaped({s[0] * s[1] * s[2], s[3]}); };
        store(flat(args.cache.keys), row, i, load(args.keys, r, head * head_dim + i));
        store(flat(args.cache.values), row, i, load(args.values, r, head * head_dim + i));
      }
    }
  }
}

void attend_dense(const AttendDenseArgs& args) {
  const Shape& s = args.cache.keys.shape();
  const int64_t n_kv_heads = s[1], capacity = s[2], head_dim = s[3];
  const int64_t n_heads = args.queries.shape()[1];
  const ConstTensor keys = as_rows(args.cache.keys), values = as_rows(args.cache.values);
  std::vector<double> weight;
  for (int64_t r = 0; r < args.queries.rows(); ++r) {
    const int64_t batch = r / args.n_tokens, position = args.first_position + r % args.n_tokens;
    const int64_t end = args.causal ? position + 1 : args.first_position + args.n_tokens;
    const int64_t begin = args.window > 0 ? std::max<int64_t>(0, position + 1 - args.window) : 0;
    for (int64_t head = 0; head < n_heads; ++head) {
      const int64_t kv_head = head / (n_heads / n_kv_heads);
      const int64_t base = (batch * n_kv_heads + kv_head) * capacity;
      weight.assign(static_cast<size_t>(end - begin), 0);
      double largest = -INFINITY, total = 0;
      for (int64_t j = begin; j < end; ++j) {
        double dot = 0;
        for (int64_t i = 0; i < head_dim; ++i)
          dot += double{load(args.queries, r, head * head_dim + i)} * load(keys, base + j, i);
        double score = dot * args.scale;
        if (args.cap > 0) score = args.cap * std::tanh(score / args.cap);
        weight[static_cast<size_t>(j - begin)] = score;
        largest = std::max(largest, score);
      }
      for (double& w : weight) total += w = std::exp(w - largest);
      for (int64_t i = 0; i < head_dim; ++i) {
        double sum = 0;
        for (int64_t j = begin; j < end; ++j)
          sum += weight[static_cast<size_t>(j - begin)] * load(values, base + j, i);
        store(args.out, r, head * head_dim + i, static_cast<float>(sum / total));
      }
    }
  }
}

}  // namespace sluice::impl::reference::attention
