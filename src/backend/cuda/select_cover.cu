// cascade-cover, docs/algorithm.md section 2, by comparing tokens with listed ones alone: with the
// inherited ones before them; then, where no kept one covers them, with each other; and everybody
// with these, since they may own.
//
// Tokens are decided in parallel, each as soon as those that its decision hangs on are decided.
// Blocks take them in order of position, so whoever waits, waits for warps that already run.

#include "backend/cuda/early.cuh"
#include "backend/cuda/select_marks.cuh"
#include "backend/cuda/select_nearest.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 8;  // of a block: one token each
constexpr int kColumns = kHopperGramColumns;

// The pieces of bits that a token has.
struct Pieces {
  uint2* data;
  const uint32_t* some;
  const volatile unsigned long long* marks;
  const uint8_t* flags;  // of kept columns
  int old, first, all;   // pieces of kept columns; with the first list; with both
  int lane;

  // list: with which the pieces end.
  __device__ Pieces(const CoverView& view, int set, int64_t t, int list) {
    const int64_t n = view.chunk.n, row = set * n + t;
    data = view.bits + row * view.tiles * kPieces;
    some = view.some + row * view.words;
    marks = marks_of(view, list, set);
    flags = view.chunk.flags + set * view.chunk.capacity;
    old = kPieces * tiles_of(*view.chunk.n_columns);
    first = old + kPieces * tiles_of(view.lists[0].rank[n]);
    all = first + (list == 1 ? kPieces * tiles_of(view.lists[1].rank[n]) : 0);
    lane = static_cast<int>(threadIdx.x) % 32;
  }

  // Calls visit(i, piece), all lanes together, for pieces from `begin` on that have bits, 32 at a
  // time, until it returns true. Lanes without such a piece have one without bits.
  template <typename Visit>
  __device__ bool any(int begin, const Visit& visit) const {
    for (int word = begin / 32; word * 32 < all; word += 32) {
      uint32_t mine = (word + lane) * 32 < all ? some[word + lane] : 0;
      if (word + lane == begin / 32) mine &= kAll << begin % 32;
      for (uint32_t rest = __ballot_sync(kAll, mine != 0); rest != 0; rest &= rest - 1) {
        const int from = __ffs(static_cast<int>(rest)) - 1, i = (word + from) * 32 + lane;
        const bool has = (__shfl_sync(kAll, mine, from) >> lane & 1) != 0;
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
__device__ int place_of(int i, int bit) {
  return i % kPieces / 4 * 128 + bit / 2 * 8 + i % 4 * 2 + bit % 2;
}

__device__ Column column_of(const CoverView& view, const Pieces& pieces, int i, int bit) {
  const int within = place_of(i, bit);
  if (i < pieces.old) return {true, i / kPieces * kColumns + within};
  if (i < pieces.first)
    return {false, view.lists[0].token[(i - pieces.old) / kPieces * kColumns + within]};
  return {false, view.lists[1].token[(i - pieces.first) / kPieces * kColumns + within]};
}

__device__ Pair pair_of(const ChunkView& view, int64_t t, const Column& column) {
  return column.is_kept ? pair_with_column(view, t, column.index)
                        : pair_with_token(view, t, column.index);
}

// Of some bits of piece i, those of columns that count, and those that are not decided yet. Of
// kept columns those count that have a flag of `mask`.
struct Counting {
  uint32_t yes, open;
};
__device__ Counting look(const Pieces& pieces, int i, uint32_t bits, uint8_t mask) {
  if (bits == 0) return {0, 0};
  if (i >= pieces.old) {
    const unsigned long long marks = pieces.marks[i - pieces.old];
    return {bits & static_cast<uint32_t>(marks), bits & ~static_cast<uint32_t>(marks >> 32)};
  }
  uint32_t yes = 0;
  for (uint32_t left = bits; left != 0; left &= left - 1) {
    const int bit = __ffs(static_cast<int>(left)) - 1;
    if ((pieces.flags[i / kPieces * kColumns + place_of(i, bit)] & mask) != 0) yes |= 1u << bit;
  }
  return {yes, 0};
}

// Whether a lane has a column that counts among bits of piece i, all lanes together. Waits only
// while none does and one may.
__device__ bool any_counts(const Pieces& pieces, int i, uint32_t bits, uint8_t mask) {
  while (true) {
    const Counting found = look(pieces, i, bits, mask);
    if (__any_sync(kAll, found.yes != 0)) return true;
    bits = found.open;
    if (!__any_sync(kAll, bits != 0)) return false;
  }
}

// Those that count, when all are decided.
__device__ uint32_t all_counting(const Pieces& pieces, int i, uint32_t bits, uint8_t mask) {
  Counting found = look(pieces, i, bits, mask);
  while (found.open != 0) found = look(pieces, i, bits, mask);
  return found.yes;
}

// Calls visit(column), all lanes together, for each lane's bits of piece i, until it returns true.
template <typename Visit>
__device__ bool any_of(const CoverView& view, const Pieces& pieces, int i, uint32_t bits,
                       const Visit& visit) {
  for (uint32_t lanes = __ballot_sync(kAll, bits != 0); lanes != 0;
       lanes = __ballot_sync(kAll, bits != 0)) {
    const int from = __ffs(static_cast<int>(lanes)) - 1;
    const int bit = __shfl_sync(kAll, __ffs(static_cast<int>(bits)) - 1, from);
    const int piece = __shfl_sync(kAll, i, from);
    if (pieces.lane == from) bits &= bits - 1;
    if (visit(column_of(view, pieces, piece, bit))) return true;
  }
  return false;
}

// Whether a column that counts is at the threshold; pieces from `begin` on. First who is decided
// and certain, then who is waited for, then who is summed again.
__device__ bool is_covered(const CoverView& view, const Pieces& pieces, int set, int64_t t,
                           int begin, uint8_t mask) {
  bool open = false, doubtful = false;
  if (pieces.any(begin, [&](int i, const uint2& piece) {
        const Counting found = look(pieces, i, piece.y, mask);
        open |= __any_sync(kAll, found.open != 0) != 0;
        doubtful |= __any_sync(kAll, (piece.x & ~piece.y) != 0) != 0;
        return __any_sync(kAll, found.yes != 0) != 0;
      }))
    return true;
  if (open && pieces.any(begin, [&](int i, const uint2& piece) {
        return any_counts(pieces, i, piece.y, mask);
      }))
    return true;
  const double threshold = view.chunk.thresholds[set];
  return doubtful && pieces.any(begin, [&](int i, const uint2& piece) {
    const uint32_t counting = all_counting(pieces, i, piece.x & ~piece.y, mask);
    return any_of(view, pieces, i, counting, [&](const Column& column) {
      return reaches(pair_of(view.chunk, t, column), false, threshold);
    });
  });
}

// What has become of a token, for those that wait while a list is decided.
__device__ void publish(const CoverView& view, int list, int set, int64_t t, CoverVerdict verdict) {
  if (threadIdx.x % 32 != 0) return;
  view.verdict[set * view.chunk.n + t] = static_cast<uint8_t>(verdict);
  const int32_t* rank = view.lists[0].rank;
  const bool is_rep = verdict == CoverVerdict::kKept || verdict == CoverVerdict::kAdded;
  if (rank[t + 1] > rank[t])
    mark(marks_of(view, list, set), 0, rank[t], is_rep);
  else if (list == 1)
    mark(marks_of(view, list, set), tiles_of(rank[view.chunk.n]), view.lists[1].rank[t], is_rep);
}

// The token and set that a warp takes, the warps of a block one after the other; false where there
// is none left. One ticket for a block: many at one address take their time.
__device__ bool take_ticket(const CoverView& view, int list, int64_t* t, int* set) {
  __shared__ int ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(view.tickets + list, 1);
  __syncthreads();
  const int turn = ticket * kWarps + static_cast<int>(threadIdx.x) / 32;
  *t = turn / view.chunk.n_sets;
  *set = turn % view.chunk.n_sets;
  return *t < view.chunk.n;
}

// Keeps inherited tokens that no earlier kept one covers; tells covered tokens from open ones.
__global__ void keep_inherited(const __grid_constant__ CoverView view) {
  wait_for_earlier();
  let_next_begin();
  const ChunkView& chunk = view.chunk;
  int64_t t;
  int set;
  if (!take_ticket(view, 0, &t, &set)) return;
  if (chunk.exempt[t] != 0) return publish(view, 0, set, t, CoverVerdict::kAside);
  if (chunk.thresholds[set] <= 0) return publish(view, 0, set, t, CoverVerdict::kKept);
  const bool inherited = chunk.is_inherited(set, t);
  // A token that another set inherits counts for nobody here.
  if (!inherited) publish(view, 0, set, t, CoverVerdict::kOpen);
  const bool covered =
      is_covered(view, Pieces(view, set, t, 0), set, t, 0, chunk.rule.deciding(inherited));
  if (inherited)
    publish(view, 0, set, t, covered ? CoverVerdict::kCovered : CoverVerdict::kKept);
  else if (covered && threadIdx.x % 32 == 0)
    view.verdict[set * chunk.n + t] = static_cast<uint8_t>(CoverVerdict::kCovered);
}

__device__ Nearest nearest_of(const ChunkView& view, const Column& column) {
  return {column.is_kept ? view.position[column.index] : view.first + column.index, 0, false,
          column.is_kept, column.index};
}

// The levels of a piece's 32 columns (CoverView::levels), four to a word.
struct PieceLevels {
  uint32_t words[8];

  __device__ PieceLevels(const CoverView& view, const Pieces& pieces, int i) {
    const int64_t piece = pieces.data - view.bits + i;
    const auto* from = reinterpret_cast<const uint4*>(view.levels + piece * 32);
    const uint4 low = from[0], high = from[1];
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
  }
  // The largest of those that have a bit.
  __device__ int largest(uint32_t bits) const {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // A byte for each of four bits.
      const uint32_t bytes = ((bits >> 4 * i & 15) * 0x00204081u & 0x01010101u) * 255;
      most = __vmaxu4(most, words[i] & bytes);
    }
    most = __vmaxu4(most, most >> 16);
    return static_cast<int>(max(most & 255, most >> 8 & 255));
  }
  // Bits of those that are at least this.
  __device__ uint32_t at_least(int level) const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bytes = __vcmpgeu4(words[i], static_cast<uint32_t>(level) * 0x01010101u);
      bits |= ((bytes & 0x01010101u) * 0x01020408u >> 24 & 15) << 4 * i;
    }
    return bits;
  }
};

// Of contenders, which the pieces hold, leaves those that may be the nearest; how many these are.
__device__ int drop_far(const CoverView& view, const Pieces& pieces, int set) {
  int best = 0;
  pieces.any(0, [&](int i, const uint2& piece) {
    if (piece.x != 0) best = max(best, PieceLevels(view, pieces, i).largest(piece.x));
    return false;
  });
  best = static_cast<int>(__reduce_max_sync(kAll, static_cast<unsigned>(best)));
  const CosineLevels levels(view.chunk.thresholds[set], view.chunk.slack);
  const int least = max(0, best - levels.margin(view.chunk.slack));
  int n_left = 0;
  pieces.any(0, [&](int i, uint2 piece) {
    if (piece.x != 0) {
      piece.x &= PieceLevels(view, pieces, i).at_least(least);
      pieces.data[i] = piece;
    }
    n_left += __reduce_add_sync(kAll, __popc(piece.x));
    return false;
  });
  return n_left;
}

// The owner of a covered token. It is at the threshold, as whoever covers it is.
__device__ Nearest owner_of(const CoverView& view, const Pieces& pieces, int set, int64_t t) {
  const ChunkView& chunk = view.chunk;
  // Who counts is found out once: from here on the pieces hold contenders alone.
  int n_contenders = 0;
  pieces.any(0, [&](int i, uint2 piece) {
    const uint32_t counting = all_counting(pieces, i, piece.x, kIsRep);
    if (counting != piece.x) {
      piece.x = counting;
      pieces.data[i] = piece;
    }
    n_contenders += __reduce_add_sync(kAll, __popc(counting));
    return false;
  });
  if (n_contenders > 1 && view.levels != nullptr) n_contenders = drop_far(view, pieces, set);
  const auto for_contenders = [&](const auto& visit) {
    pieces.any(0, [&](int i, const uint2& piece) {
      return any_of(view, pieces, i, piece.x, [&](const Column& column) {
        visit(column);
        return false;
      });
    });
  };
  Nearest best;
  if (n_contenders == 1 && !chunk.want_cosines) {
    for_contenders([&](const Column& column) { best = nearest_of(chunk, column); });
    return best;
  }

  double first = -INFINITY, second = -INFINITY;
  const double error = chunk.bf16 ? 2 * rough_error(chunk.d) : 0;
  if (chunk.bf16 && n_contenders > 1) {
    for_contenders([&](const Column& column) {
      const double rough = rough_cosine(pair_of(chunk, t, column));
      if (rough > first) {
        second = first;
        first = rough;
        best = nearest_of(chunk, column);
      } else if (rough > second) {
        second = rough;
      }
    });
    if (second < first - error && !chunk.want_cosines) return best;
  }
  best = {};
  for_contenders([&](const Column& column) {
    if (chunk.bf16 && n_contenders > 1 && rough_cosine(pair_of(chunk, t, column)) < first - error)
      return;
    consider(chunk, t, best, nearest_of(chunk, column));
  });
  if (chunk.want_cosines) make_ordered(chunk, t, best);
  return best;
}

// Decides open tokens in order, and finds owners.
__global__ void add_and_own(const __grid_constant__ CoverView view) {
  wait_for_earlier();
  let_next_begin();
  const ChunkView& chunk = view.chunk;
  int64_t t;
  int set;
  if (!take_ticket(view, 1, &t, &set)) return;
  const Pieces pieces(view, set, t, 1);
  auto verdict = static_cast<CoverVerdict>(view.verdict[set * chunk.n + t]);
  if (verdict == CoverVerdict::kOpen) {
    // No kept one is at its threshold, so that those added decide.
    verdict = is_covered(view, pieces, set, t, pieces.old, kIsRep) ? CoverVerdict::kCovered
                                                                   : CoverVerdict::kAdded;
    publish(view, 1, set, t, verdict);
  }
  Nearest owner;
  owner.position = chunk.first + t;
  owner.cosine = 1;
  if (verdict == CoverVerdict::kCovered) owner = owner_of(view, pieces, set, t);
  if (threadIdx.x % 32 != 0) return;
  const TokenStatus status = verdict == CoverVerdict::kAside     ? TokenStatus::kExempt
                             : verdict == CoverVerdict::kCovered ? TokenStatus::kRedundant
                                                                 : TokenStatus::kRepresentative;
  const int64_t at = set * chunk.set_stride + chunk.first + t;
  chunk.status[at] = static_cast<uint8_t>(status);
  chunk.owner[at] = static_cast<int32_t>(owner.position);
  if (chunk.want_cosines) chunk.cosine[at] = static_cast<float>(owner.cosine);
}

}  // namespace

void decide_cover(Context& context, const CoverView& view, const ConstTensor& rows) {
  SLUICE_CHECK(view.chunk.n <= kCoverChunk && view.chunk.n * view.chunk.n_sets < INT32_MAX);
  const dim3 blocks(static_cast<unsigned>(ceil_div(view.chunk.n * view.chunk.n_sets, kWarps)));
  list_inherited(context, view, rows);
  multiply_cover(context, view, 0);
  launch_early(context, "keep_inherited", keep_inherited, blocks, 32 * kWarps, view);
  list_open(context, view);
  multiply_cover(context, view, 1);
  launch_early(context, "add_and_own", add_and_own, blocks, 32 * kWarps, view);
}

}  // namespace sluice::cuda
