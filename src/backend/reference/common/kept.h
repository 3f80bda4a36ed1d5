// Rows of earlier passes, which the operations with a state keep.

#pragma once

#include "core/tensor.h"

namespace sluice::impl::reference {

// Rows of all passes so far, in the dtype they came in.
class KeptRows {
 public:
  void append(const ConstTensor& rows);
  void clear() { *this = {}; }
  void drop_last();
  ConstTensor view() const { return buffer_.view(); }  // (n_rows, row_elements)
  int64_t size() const { return n_rows_; }
  int64_t bytes() const;

 private:
  Buffer buffer_;
  int64_t n_rows_ = 0;
};

}  // namespace sluice::impl::reference
