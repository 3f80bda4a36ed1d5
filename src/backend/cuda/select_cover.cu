// cascade-cover, docs/algorithm.md section 2, by comparing tokens with listed ones alone: with the
// inherited ones before them; then, where no kept one covers them, with each other; and everybody
// with these, since they may own.
//
// Tokens are decided in parallel, each as soon as those that its decision hangs on are decided.
// Blocks take them in order of position, so whoever waits, waits for warps that already run.

#include "backend/cuda/select_marks.cuh"
#include "backend/cuda/select_nearest.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 8;  // of a block: one token each
constexpr int kColumns = kHopperGramColumns;

// The pieces of bits that a token has: of kept columns, of the first list before it, and of the
// second.
struct Pieces {
  uint4* data;
  const volatile unsigned long long* marks;
  const uint8_t* flags;  // of kept columns
  int old, first, all;   // pieces of kept columns; with the first list; with both
  int skipped;           // pieces of the first list that are all behind the token
  int lane;

  // list: with which the pieces end.
  __device__ Pieces(const CoverView& view, int set, int64_t t, int list) {
    const int64_t n = view.chunk.n;
    const int listed = tiles_of(view.lists[0].rank[t]);
    data = view.bits + (set * n + t) * view.tiles * 4;
    marks = marks_of(view, list, set);
    flags = view.chunk.flags + set * view.chunk.capacity;
    old = 4 * tiles_of(*view.chunk.n_columns);
    first = old + 4 * listed;
    all = first + (list == 1 ? 4 * tiles_of(view.lists[1].rank[t]) : 0);
    skipped = 4 * (tiles_of(view.lists[0].rank[n]) - listed);
    lane = static_cast<int>(threadIdx.x) % 32;
  }
  __device__ int place(int i) const { return i < first ? i : i + skipped; }
  __device__ uint4 at(int i) const { return i < all ? data[place(i)] : make_uint4(0, 0, 0, 0); }
  __device__ void put(int i, const uint4& piece) const {
    if (i < all) data[place(i)] = piece;
  }
};

// A column: a kept one, or a token of the chunk.
struct Column {
  bool is_kept;
  int64_t index;
};
// Of bit `bit` of the first or second word of piece i.
__device__ Column column_of(const CoverView& view, const Pieces& pieces, int i, int word, int bit) {
  const int within = word * 128 + bit / 2 * 8 + i % 4 * 2 + bit % 2;
  if (i < pieces.old) return {true, i / 4 * kColumns + within};
  if (i < pieces.first)
    return {false, view.lists[0].token[(i - pieces.old) / 4 * kColumns + within]};
  return {false, view.lists[1].token[(i - pieces.first) / 4 * kColumns + within]};
}

__device__ Pair pair_of(const ChunkView& view, int64_t t, const Column& column) {
  return column.is_kept ? pair_with_column(view, t, column.index)
                        : pair_with_token(view, t, column.index);
}

// Of bits x and y of piece i, those of columns that count, and those that are not decided yet. Of
// kept columns those count that have a flag of `mask`.
struct Counting {
  uint32_t yes[2], open[2];
};
__device__ Counting look(const Pieces& pieces, int i, uint32_t x, uint32_t y, uint8_t mask) {
  Counting found = {{0, 0}, {0, 0}};
  if ((x | y) == 0) return found;
  const uint32_t bits[2] = {x, y};
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    if (i >= pieces.old) {
      const unsigned long long marks = pieces.marks[2 * (pieces.place(i) - pieces.old) + word];
      found.yes[word] = bits[word] & static_cast<uint32_t>(marks);
      found.open[word] = bits[word] & ~static_cast<uint32_t>(marks >> 32);
      continue;
    }
    for (uint32_t left = bits[word]; left != 0; left &= left - 1) {
      const int bit = __ffs(static_cast<int>(left)) - 1;
      const int within = word * 128 + bit / 2 * 8 + i % 4 * 2 + bit % 2;
      if ((pieces.flags[i / 4 * kColumns + within] & mask) != 0) found.yes[word] |= 1u << bit;
    }
  }
  return found;
}

// Whether a lane has a column that counts among the bits x and y of piece i, all lanes together.
// Waits only while none does and one may.
__device__ bool any_counts(const Pieces& pieces, int i, uint32_t x, uint32_t y, uint8_t mask) {
  while (true) {
    const Counting found = look(pieces, i, x, y, mask);
    if (__any_sync(kAll, (found.yes[0] | found.yes[1]) != 0)) return true;
    x = found.open[0];
    y = found.open[1];
    if (!__any_sync(kAll, (x | y) != 0)) return false;
  }
}

// Those that count, when all are decided.
__device__ Counting all_counting(const Pieces& pieces, int i, uint32_t x, uint32_t y,
                                 uint8_t mask) {
  Counting found = look(pieces, i, x, y, mask);
  while ((found.open[0] | found.open[1]) != 0) found = look(pieces, i, x, y, mask);
  return found;
}

// Calls visit(column), all lanes together, for each lane's bits x and y of piece i, until it
// returns true.
template <typename Visit>
__device__ bool any_of(const CoverView& view, const Pieces& pieces, int i, uint32_t x, uint32_t y,
                       const Visit& visit) {
  for (uint32_t lanes = __ballot_sync(kAll, (x | y) != 0); lanes != 0;
       lanes = __ballot_sync(kAll, (x | y) != 0)) {
    const int from = __ffs(static_cast<int>(lanes)) - 1;
    const int word = x != 0 ? 0 : 1;
    const int bit = __ffs(static_cast<int>(x != 0 ? x : y)) - 1;
    const int its_word = __shfl_sync(kAll, word, from), its_bit = __shfl_sync(kAll, bit, from);
    const int its_piece = __shfl_sync(kAll, i, from);
    if (pieces.lane == from) {
      if (word == 0)
        x &= x - 1;
      else
        y &= y - 1;
    }
    if (visit(column_of(view, pieces, its_piece, its_word, its_bit))) return true;
  }
  return false;
}

// Whether a column that counts is at the threshold; pieces from `begin` on.
__device__ bool is_covered(const CoverView& view, const Pieces& pieces, int set, int64_t t,
                           int begin, uint8_t mask) {
  for (int i = begin; i < pieces.all; i += 32) {
    const uint4 piece = pieces.at(i + pieces.lane);
    if (any_counts(pieces, i + pieces.lane, piece.z, piece.w, mask)) return true;
  }
  const double threshold = view.chunk.thresholds[set];
  for (int i = begin; i < pieces.all; i += 32) {
    const int mine = i + pieces.lane;
    const uint4 piece = pieces.at(mine);
    const Counting found = all_counting(pieces, mine, piece.x & ~piece.z, piece.y & ~piece.w, mask);
    if (any_of(view, pieces, mine, found.yes[0], found.yes[1], [&](const Column& column) {
          return reaches(pair_of(view.chunk, t, column), false, threshold);
        }))
      return true;
  }
  return false;
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
  const ChunkView& chunk = view.chunk;
  int64_t t;
  int set;
  if (!take_ticket(view, 0, &t, &set)) return;
  if (chunk.exempt[t] != 0) return publish(view, 0, set, t, CoverVerdict::kAside);
  if (chunk.thresholds[set] <= 0) return publish(view, 0, set, t, CoverVerdict::kKept);
  const bool inherited = is_inherited(chunk, set, t);
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

// The owner of a covered token. It is at the threshold, as whoever covers it is.
__device__ Nearest owner_of(const CoverView& view, const Pieces& pieces, int set, int64_t t) {
  const ChunkView& chunk = view.chunk;
  // Who counts is found out once: from here on the pieces hold contenders alone.
  int n_contenders = 0;
  for (int i = 0; i < pieces.all; i += 32) {
    const int mine = i + pieces.lane;
    uint4 piece = pieces.at(mine);
    const Counting found = all_counting(pieces, mine, piece.x, piece.y, kIsRep);
    piece.x = found.yes[0];
    piece.y = found.yes[1];
    pieces.put(mine, piece);
    n_contenders += __reduce_add_sync(kAll, __popc(piece.x) + __popc(piece.y));
  }
  const auto for_contenders = [&](const auto& visit) {
    for (int i = 0; i < pieces.all; i += 32) {
      const uint4 piece = pieces.at(i + pieces.lane);
      any_of(view, pieces, i + pieces.lane, piece.x, piece.y, [&](const Column& column) {
        visit(column);
        return false;
      });
    }
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
  const cudaStream_t stream = context.stream();
  const auto warps = static_cast<unsigned>(ceil_div(view.chunk.n * view.chunk.n_sets, kWarps));
  list_inherited(context, view);
  place_rows(context, view, rows);
  multiply_cover(context, view, 0);
  keep_inherited<<<warps, 32 * kWarps, 0, stream>>>(view);
  check_launch("keep_inherited");
  list_open(context, view);
  multiply_cover(context, view, 1);
  add_and_own<<<warps, 32 * kWarps, 0, stream>>>(view);
  check_launch("add_and_own");
}

}  // namespace sluice::cuda
