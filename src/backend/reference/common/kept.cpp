#include "backend/reference/common/kept.h"

#include <utility>

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

}  // namespace sluice::impl::reference
