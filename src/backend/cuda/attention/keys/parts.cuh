// What blocks that share the keys of a tile leave of its rows, and how that is put together.

#pragma once

#include "backend/cuda/attention/dense/parts.cuh"
#include "backend/cuda/attention/keys/kernels.h"

namespace sluice::impl::cuda::keys {

using namespace dense;

// (n_tiles, n_kv_heads, kKeysTileRows, n_splits), and head_dim for the sums.
struct KeyParts : RowParts {
  static __device__ int64_t at(const KeysView& view, int64_t tile, int64_t kv_head, int64_t row,
                               int64_t split) {
    return ((tile * view.heads.n_kv_heads + kv_head) * kKeysTileRows + row) * view.split.n + split;
  }
};

// Memory for the parts of view.split.n.
inline KeyParts make_parts(const std::shared_ptr<Context>& context, const KeysView& view,
                           DeviceArray<float>& memory) {
  const int64_t n = view.tiles.n * view.heads.n_kv_heads * kKeysTileRows * view.split.n;
  memory = DeviceArray<float>(context, n * (view.heads.head_dim + 2));
  return {{memory.data(), memory.data() + n * view.heads.head_dim,
           memory.data() + n * (view.heads.head_dim + 1)}};
}
void put_keys_together(Context& context, const KeysView& view, const KeyParts& parts);

}  // namespace sluice::impl::cuda::keys
