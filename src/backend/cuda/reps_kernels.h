// What attention of modes `copy` and `paper` asks of the device, beside that of mode `keys`.
// docs/algorithm.md, section 3.
//
// Rows are the tokens that stand for themselves; key j is that of cluster j. A score gets
// log m_j(t), and m_j grows between the queries of a tile. A weight is a sum over members: those up
// to the tile's first query count at once, as far keys with the log of their number; every token
// behind it, up to the tile's last query, is a near key of its own, the row of its cluster.
//
// For r rows among T tokens, h heads of size D: 4 D h r (r / 2 + n) operations, n being the tokens
// that the queries of a tile span, and r^2 / kKeysTileRows logs, some tiles' at a time.

#pragma once

#include "backend/cuda/keys_kernels.h"

namespace sluice::cuda {

// bias of a tile = log of (before + the tokens in front of its border), over scale; then `before`
// becomes the counts after all n tokens.
struct CountArgs {
  const int32_t* cluster;  // (n)
  int64_t n, n_clusters;
  int64_t first;          // position of the first token, as borders have it
  const Border* borders;  // (n_tiles) ascending, none behind the last token
  int64_t n_tiles;
  float scale;
  float* bias;      // (n_tiles, n_clusters)
  int32_t* before;  // (n_clusters)
};
void count_members(Context& context, const CountArgs& args);

}  // namespace sluice::cuda
