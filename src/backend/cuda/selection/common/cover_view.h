// What the kernels of cascade-cover on Hopper share. docs/algorithm.md, sections 2 and 5.

#pragma once

#include "backend/cuda/selection/common/kernels.h"

namespace sluice::impl::cuda::selection {

// Tokens of a chunk that those behind them are compared with, in order.
struct ListedTokens {
  int32_t* rank;   // (n + 1) how many are listed before a token
  int32_t* token;  // (n) those that are listed, then the others
};

// A chunk of at most kCoverChunk tokens for cascade-cover. `chunk` has no local cosines, no
// conflicts and none of what belongs to them.
struct CoverView {
  ChunkView chunk;
  // All tokens are on the first list, whose rows are read where they are, and nobody on the second.
  bool whole;
  const double* given_inverse;  // (n) 1 / norm of the rows as given
  // Written here for `chunk`, and who is exempt.
  ExemptArgs exempt;
  uint16_t* rows;
  float* scale;
  double* inverse;

  // Tokens that a set inherits, then those uncovered in a set that are not inherited by another.
  ListedTokens lists[2];
  uint16_t* listed;  // (n + 2 tiles of columns, padded) bf16: the lists, each from a whole tile on
  float* listed_scale;  // 1 / norm, or 0

  // Which columns are at a token's threshold: (n_sets, n, tiles, 8), tiles of kept columns, of the
  // first list, and of the second. Pieces p and 4 + p of a tile hold columns 8 i + 2 p and
  // 8 i + 2 p + 1 of its first and last 128: bits 2 i and 2 i + 1 of x for those that may be at the
  // threshold, of y for those that are in any case. Pieces without bits are not written.
  uint2* bits;
  int64_t tiles;   // room for
  uint32_t* some;  // (n_sets, n, words): a bit for each piece that has any
  int64_t words;
  // How near these columns are, (n_sets, n, tiles, 8, 32): larger is nearer (CosineLevels).
  uint8_t* levels;
  uint8_t* decision;  // (n_sets, n) CoverDecision
  // What has become of listed tokens, while inherited ones are decided and while open ones are:
  // (2, n_sets, 8 mark_tiles), pieces as above. The lower half of a word says who is a
  // representative, the upper half who is decided.
  unsigned long long* marks;
  int64_t mark_tiles;
  int32_t* tickets;  // (2)
  int64_t* products;
  BasisView basis;
};
enum class CoverDecision : uint8_t {
  kKept,     // inherited, and still a representative
  kAdded,    // a representative that is not inherited
  kCovered,  // by a representative
  kOpen,     // not inherited, and no kept one covers it
  kAside,    // exempt
};

// selection/cover/cover.cu
void decide_cover(Context& context, const CoverView& view, const ConstTensor& rows);
// selection/cover/list.cu: the first list, then the second, with their rows; the first time also
// the chunk's rows where they must be prepared.
void list_inherited(Context& context, const CoverView& view, const ConstTensor& rows);
void list_open(Context& context, const CoverView& view);
void copy_listed(Context& context, const CoverView& view);
// selection/cover/hopper.cu: products with kept columns and the first list, or with the second.
void multiply_cover(Context& context, const CoverView& view, int list);
// The same of tiles that coordinates leave open, or of all where the basis is not used; for the
// first list, copy_listed has their rows ready.
void multiply_cover_again(Context& context, const CoverView& view, int list);
// selection/basis/project_hopper.cu: coordinates of the chunk's tokens and of kept columns that
// have none.
void project_cover(Context& context, const CoverView& view);
// selection/basis/hopper.cu: products of coordinates, as multiply_cover.
void multiply_coordinates(Context& context, const CoverView& view, int list);

}  // namespace sluice::impl::cuda::selection
