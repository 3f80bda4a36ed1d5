// One kernel of dense attention on the inputs of a case.

#pragma once

#include "backend/cuda/attention/dense/dense.h"
#include "parity/attend_case.h"

namespace sluice::impl::test {

// Returns when it is done.
using Kernel = std::function<void(const cuda::dense::AttendView&)>;

inline std::vector<float> run_kernel(Backend& backend, const AttendCase& c, const AttendInputs& in,
                                     const Kernel& kernel) {
  const DeviceTensor queries(backend, DType::kBF16, c.rows(), in.queries, c.pad);
  const DeviceTensor keys(backend, DType::kBF16, c.cache(), in.keys);
  const DeviceTensor values(backend, DType::kBF16, c.cache(), in.values);
  const DeviceTensor out = unwritten(backend, DType::kBF16, c.rows(), c.pad);
  backend.wait();
  kernel({.queries = queries.view().bytes(),
          .keys = keys.view().bytes(),
          .values = values.view().bytes(),
          .out = out.view().bytes(),
          .query_stride = queries.view().row_stride(),
          .out_stride = out.view().row_stride(),
          .n_batch = c.n_batch,
          .n_heads = c.n_heads,
          .n_kv_heads = c.n_kv_heads,
          .capacity = c.capacity(),
          .head_dim = c.head_dim,
          .n_tokens = c.n_tokens,
          .first_position = c.first_position,
          .window = c.window,
          .causal = c.causal,
          .scale = c.scale()});
  return out.values();
}

}  // namespace sluice::impl::test
