// The columns at a token's threshold (CoverView::bits), looked through by a warp.

#pragma once

#include "backend/cuda/selection/common/exact.cuh"
#include "backend/cuda/selection/common/marks.cuh"

namespace sluice::impl::cuda::selection {

// The pieces of bits that a token has.
struct Pieces {
  uint2* data;
  const uint32_t* some;
  const volatile unsigned long long* marks;
  const uint8_t* flags;  // of kept columns
  int old, first;        // pieces of kept columns; with the first list
  int n_words, lane;
  uint32_t first_words;  // of `some`, one to a lane

  // list: whose tokens are being decided.
  __device__ Pieces(const CoverView& view, int set, int64_t t, int list) {
    const int64_t n = view.chunk.n, row = set * n + t;
    lane = static_cast<int>(threadIdx.x) % 32;
    data = view.bits + row * view.tiles * kPieces;
    some = view.some + row * view.words;
    n_words = static_cast<int>(view.words);
    first_words = lane < n_words ? some[lane] : 0;
    marks = marks_of(view, list, set);
    flags = view.chunk.kept.flags + set * view.chunk.kept.capacity;
    old = kPieces * tiles_of(*view.chunk.kept.n);
    first = old + kPieces * tiles_of(view.lists[0].rank[n]);
  }

  // Calls visit(i, piece), all lanes together, for pieces from `begin` on that have bits, 32 at a
  // time, until it returns true. Lanes without such a piece have one without bits.
  template <typename Visit>
  __device__ bool any(int begin, const Visit& visit) const {
    for (int word = 0; word < n_words; word += 32) {
      const int at = (word + lane) * 32;
      uint32_t mine = word == 0 ? first_words : word + lane < n_words ? some[word + lane] : 0;
      if (at < begin) mine &= at + 32 <= begin ? 0 : kAllLanes << (begin - at);
      for (uint32_t rest = __ballot_sync(kAllLanes, mine != 0); rest != 0; rest &= rest - 1) {
        const int from = __ffs(static_cast<int>(rest)) - 1, i = (word + from) * 32 + lane;
        const bool has = (__shfl_sync(kAllLanes, mine, from) >> lane & 1) != 0;
        if (visit(i, has ? data[i] : make_uint2(0, 0))) return true;
      }
    }
    return false;
  }
};

// A column: a kept one, or a token of the chunk.
struct Column {
  bool is_kept;
  int64_t index;
};
// Of a bit of piece i, within its tile.
__device__ inline int place_of(int i, int bit) {
  return i % kPieces / 4 * 128 + bit / 2 * 8 + i % 4 * 2 + bit % 2;
}

__device__ inline Column column_of(const CoverView& view, const Pieces& pieces, int i, int bit) {
  const int within = place_of(i, bit);
  if (i < pieces.old) return {true, i / kPieces * kHopperGramColumns + within};
  if (i < pieces.first)
    return {false, view.lists[0].token[(i - pieces.old) / kPieces * kHopperGramColumns + within]};
  return {false, view.lists[1].token[(i - pieces.first) / kPieces * kHopperGramColumns + within]};
}

__device__ inline Pair pair_of(const ChunkView& view, int64_t t, const Column& column) {
  return column.is_kept ? pair_with_column(view, t, column.index)
                        : pair_with_token(view, t, column.index);
}

// Of some bits of piece i, those of columns that count, and those that are not decided yet. Of
// kept columns those count that have a flag of `mask`.
struct Counting {
  uint32_t yes, open;
};
__device__ inline Counting look(const Pieces& pieces, int i, uint32_t bits, uint8_t mask) {
  if (bits == 0) return {0, 0};
  if (i >= pieces.old) {
    const unsigned long long marks = pieces.marks[i - pieces.old];
    return {bits & static_cast<uint32_t>(marks), bits & ~static_cast<uint32_t>(marks >> 32)};
  }
  uint32_t yes = 0;
  for (uint32_t left = bits; left != 0; left &= left - 1) {
    const int bit = __ffs(static_cast<int>(left)) - 1;
    if ((pieces.flags[i / kPieces * kHopperGramColumns + place_of(i, bit)] & mask) != 0)
      yes |= 1u << bit;
  }
  return {yes, 0};
}

// Whether a lane has a column that counts among bits of piece i, all lanes together. Waits only
// while none does and one may.
__device__ inline bool any_counts(const Pieces& pieces, int i, uint32_t bits, uint8_t mask) {
  while (true) {
    const Counting found = look(pieces, i, bits, mask);
    if (__any_sync(kAllLanes, found.yes != 0)) return true;
    bits = found.open;
    if (!__any_sync(kAllLanes, bits != 0)) return false;
  }
}

// Those that count, when all are decided.
__device__ inline uint32_t all_counting(const Pieces& pieces, int i, uint32_t bits, uint8_t mask) {
  Counting found = look(pieces, i, bits, mask);
  while (found.open != 0) found = look(pieces, i, bits, mask);
  return found.yes;
}

// Calls visit(column), all lanes together, for each lane's bits of piece i, until it returns true.
template <typename Visit>
__device__ bool any_of(const CoverView& view, const Pieces& pieces, int i, uint32_t bits,
                       const Visit& visit) {
  for (uint32_t lanes = __ballot_sync(kAllLanes, bits != 0); lanes != 0;
       lanes = __ballot_sync(kAllLanes, bits != 0)) {
    const int from = __ffs(static_cast<int>(lanes)) - 1;
    const int bit = __shfl_sync(kAllLanes, __ffs(static_cast<int>(bits)) - 1, from);
    const int piece = __shfl_sync(kAllLanes, i, from);
    if (pieces.lane == from) bits &= bits - 1;
    if (visit(column_of(view, pieces, piece, bit))) return true;
  }
  return false;
}

}  // namespace sluice::impl::cuda::selection
