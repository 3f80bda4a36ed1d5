// Memory of a model that grows with the rows of its passes.

#pragma once

#include "backend/backend.h"

namespace sluice::impl {

// A buffer of at least n_rows, kept while it is large enough.
inline Tensor grown(Backend& backend, Buffer& buffer, DType dtype, int64_t n_rows, int64_t width) {
  if (!buffer.defined() || buffer.view().rows() < n_rows)
    buffer = backend.allocate(dtype, {n_rows, width});
  return buffer.view().rows_from(0, n_rows);
}

}  // namespace sluice::impl
