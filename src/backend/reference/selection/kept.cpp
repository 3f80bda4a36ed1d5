// What the stateful operations share: rows of earlier passes, and the softmax of one query head.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "backend/reference/reference.h"

namespace sluice::impl::reference {

void KeptRows::append(const ConstTensor& rows) {
  const int64_t n_before = n_rows_, width = rows.row_elements();
  if (rows.rows() == 0) return;
  Buffer grown = host_buffer(rows.dtype(), {n_before + rows.rows(), width});
  if (n_before > 0) copy_rows(buffer_.view(), grown.view().rows_from(0, n_before));
  const Tensor end = grown.view().rows_from(n_before, rows.rows());
  copy_rows(rows, Tensor(end.bytes(), end.dtype(), rows.shape()));
  buffer_ = std::move(grown);
  n_rows_ += rows.rows();
}

void KeptRows::drop_last() {
  const Buffer all = std::move(buffer_);
  const int64_t n = std::exchange(n_rows_, 0) - 1;
  buffer_ = {};
  append(all.view().rows_from(0, n));
}

int64_t KeptRows::bytes() const {
  return n_rows_ == 0 ? 0 : buffer_.view().shape().numel() * element_bytes(buffer_.view().dtype());
}

std::vector<CountedKey> counted_keys(const KeptRows& keys, const KeptRows& values, int64_t kv_head,
                                     int64_t head_dim) {
  std::vector<CountedKey> all;
  for (int64_t row = 0; row < keys.size(); ++row) {
    CountedKey& one = all.emplace_back(CountedKey{1, {}, {}});
    for (int64_t i = kv_head * head_dim; i < (kv_head + 1) * head_dim; ++i) {
      one.key.push_back(load(keys.view(), row, i));
      one.value.push_back(load(values.view(), row, i));
    }
  }
  return all;
}

double attend_head(const AttendHeadArgs& args) {
  const int64_t head_dim = args.queries.shape()[2], first = args.head * head_dim;
  SLUICE_CHECK(!args.keys.empty());
  std::vector<double> query, weight;
  for (int64_t i = 0; i < head_dim; ++i) query.push_back(load(args.queries, args.row, first + i));
  for (const CountedKey* j : args.keys)
    weight.push_back(std::inner_product(query.begin(), query.end(), j->key.begin(), 0.0) *
                         args.scale +
                     std::log(j->count));
  const double largest = *std::max_element(weight.begin(), weight.end());
  double total = 0;
  for (double& w : weight) total += w = std::exp(w - largest);
  std::vector<double> sum(query.size());
  for (size_t j = 0; j < weight.size(); ++j)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight[j] * args.keys[j]->value[i];
  for (int64_t i = 0; i < head_dim; ++i)
    store(args.out, args.row, first + i, static_cast<float>(sum[static_cast<size_t>(i)] / total));
  return largest + std::log(total);
}

}  // namespace sluice::impl::reference
