// Exact attention, docs/algorithm.md section 3, mode `dense`.

#include <algorithm>
#include <cmath>

#include "backend/reference/attention/attention.h"
#include "backend/reference/common/values.h"

namespace sluice::impl::reference::attention {
namespace {

// A cache seen as (n_batch * n_kv_heads * capacity) rows of head_dim, in the compute dtype or int8.
struct CachedRows {
  CachedRows(const Tensor& cache, const Tensor& of_rows)
      : rows(cache.reshaped({cache.shape().numel() / cache.shape()[3], cache.shape()[3]})),
        scales(of_rows) {}

  double at(int64_t row, int64_t i) const {
    if (rows.dtype() != DType::kI8) return load(rows, row, i);
    return double{scales.data<float>()[row]} * rows.row<int8_t>(row)[i];
  }
  // x: a head of row r of (n_rows, n_heads, head_dim).
  void put(int64_t row, const ConstTensor& x, int64_t r, int64_t head) const {
    const int64_t head_dim = rows.shape()[1], first = head * head_dim;
    if (rows.dtype() != DType::kI8) {
      for (int64_t i = 0; i < head_dim; ++i) store(rows, row, i, load(x, r, first + i));
      return;
    }
    float largest = 0;
    for (int64_t i = 0; i < head_dim; ++i) largest = int8_largest(largest, load(x, r, first + i));
    const float scale = int8_scale(largest);
    scales.data<float>()[row] = scale;
    for (int64_t i = 0; i < head_dim; ++i)
      rows.row<int8_t>(row)[i] = to_int8(load(x, r, first + i), scale);
  }

  Tensor rows;    // (n_rows, head_dim)
  Tensor scales;  // of int8: (n_rows) f32
};

}  // namespace

void store_kv(const StoreKvArgs& args) {
  const Shape& s = args.cache.keys.shape();
  const int64_t n_kv_heads = s[1], capacity = s[2];
  const CachedRows keys(args.cache.keys, args.cache.key_scales);
  const CachedRows values(args.cache.values, args.cache.value_scales);
  for (int64_t r = 0; r < args.keys.rows(); ++r) {
    const int64_t batch = r / args.n_tokens, position = args.first_position + r % args.n_tokens;
    SLUICE_CHECK(batch < s[0] && position < capacity);
    for (int64_t head = 0; head < n_kv_heads; ++head) {
      const int64_t row = (batch * n_kv_heads + head) * capacity + position;
      keys.put(row, args.keys, r, head);
      values.put(row, args.values, r, head);
    }
  }
}

void attend_dense(const AttendDenseArgs& args) {
  const Shape& s = args.cache.keys.shape();
  const int64_t n_kv_heads = s[1], capacity = s[2], head_dim = s[3];
  const int64_t n_heads = args.queries.shape()[1];
  const CachedRows keys(args.cache.keys, args.cache.key_scales);
  const CachedRows values(args.cache.values, args.cache.value_scales);
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
          dot += double{load(args.queries, r, head * head_dim + i)} * keys.at(base + j, i);
        double score = dot * args.scale;
        if (args.cap > 0) score = args.cap * std::tanh(score / args.cap);
        weight[static_cast<size_t>(j - begin)] = score;
        largest = std::max(largest, score);
      }
      for (double& w : weight) total += w = std::exp(w - largest);
      for (int64_t i = 0; i < head_dim; ++i) {
        double sum = 0;
        for (int64_t j = begin; j < end; ++j)
          sum += weight[static_cast<size_t>(j - begin)] * values.at(base + j, i);
        store(args.out, r, head * head_dim + i, static_cast<float>(sum / total));
      }
    }
  }
}

}  // namespace sluice::impl::reference::attention
