// What the stateful operations share: rows of earlier passes, and the softmax of one query head.

#include <algorithm>
#include <cmath>

#include "backend/reference/reference.h"

namespace sluice::reference {

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

int64_t KeptRows::bytes() const {
  return n_rows_ == 0 ? 0 : buffer_.view().shape().numel() * element_bytes(buffer_.view().dtype());
}

void attend_head(const AttendHeadArgs& args) {
  const int64_t head_dim = args.queries.shape()[2], first = args.head * head_dim;
  SLUICE_CHECK(!args.keys.empty());
  std::vector<double> weight;
  for (const CountedKey& j : args.keys) {
    double dot = 0;
    for (int64_t i = 0; i < head_dim; ++i)
      dot += double{load(args.queries, args.row, first + i)} * j.key[static_cast<size_t>(i)];
    weight.push_back(dot * args.scale + std::log(j.count));
  }
  const double largest = *std::max_element(weight.begin(), weight.end());
  double total = 0;
  for (double& w : weight) total += w = std::exp(w - largest);
  for (int64_t i = 0; i < head_dim; ++i) {
    double sum = 0;
    for (size_t j = 0; j < weight.size(); ++j)
      sum += weight[j] * args.keys[j].value[static_cast<size_t>(i)];
    store(args.out, args.row, first + i, static_cast<float>(sum / total));
  }
}

}  // namespace sluice::reference
