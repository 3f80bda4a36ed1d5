// What attention of modes `copy` and `paper` asks of the device, beside that of mode `keys`.
// docs/algorithm.md, section 3.
//
// Rows are the tokens that stand for themselves; key j is that of cluster j. A score gets
// log m_j(t), and m_j grows between the queries of a tile. A weight is a sum over members: those up
// to the tile's first query count at once, as far keys with the log of their number; every token
// behind it, up to the tile's last query, is a near key of its own, the row of its cluster.
//
// For r rows among T tokens, h heads of size D: 4 D h r (r / 2 + n) operations, n being the tokens
// that the queries of a tile span, and r^2 / kKeysTileRows logs.

#pragma once

#include "backend/cuda/keys_kernels.h"

namespace sluice::cuda {

// bias of a tile = log of (before + the tokens that it and tiles before it are the first to count),
// over scale; then `before` becomes the counts after all n tokens of the pass.
struct CountArgs {
  const int32_t* cluster;
  int64_t n, n_clusters;
  const int32_t* tile_of;  // (n) the first tile that counts each token, n_tiles where none does
  int64_t n_tiles;
  float scale;
  float* bias;      // (n_tiles + 1, n_clusters)
  int32_t* before;  // (n_clusters)
};
void count_members(Context& context, const CountArgs& args);

}  // namespace sluice::cuda
