// cascade-cover, docs/algorithm.md section 2, by comparing tokens with listed ones alone: with the
// inherited ones before them; then, where no kept one covers them, with each other; and everybody
// with these, since they may own.
//
// Tokens are decided in parallel, each as soon as those that its decision hangs on are decided.
// Warps take them in order of position, so whoever waits, waits for warps that already run.

#include "backend/cuda/block_scan.cuh"
#include "backend/cuda/select_nearest.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 8;  // of a block: one token each
constexpr int kListThreads = 1024, kPerThread = kCoverChunk / kListThreads;
constexpr int kColumns = kHopperGramColumns;

__device__ bool is_inherited(const ChunkView& view, int set, int64_t t) {
  return view.inherited[set * view.n + t] != 0;
}

__device__ bool inherited_by_any(const ChunkView& view, int64_t t) {
  if (view.exempt[t] != 0) return false;
  for (int set = 0; set < view.n_sets; ++set)
    if (view.thresholds[set] > 0 && is_inherited(view, set, t)) return true;
  return false;
}

__device__ bool is_open(const CoverView& view, int64_t t) {
  for (int set = 0; set < view.chunk.n_sets; ++set)
    if (view.verdict[set * view.chunk.n + t] == static_cast<uint8_t>(CoverVerdict::kOpen))
      return true;
  return false;
}

// Norms that products in f32 are at ease with; rows of zeros have none.
__device__ bool is_odd(double inverse) {
  return inverse != 0 && !(inverse > 0x1p-40 && inverse < 0x1p40);
}

// One block.
template <int kList>
__global__ void __launch_bounds__(kListThreads)
    list_tokens(const __grid_constant__ CoverView view) {
  __shared__ int shared[33];
  const ChunkView& chunk = view.chunk;
  const ListedTokens& list = view.lists[kList];
  const int64_t t0 = int64_t{threadIdx.x} * kPerThread;
  uint32_t marked = 0;
  bool odd = false;
  for (int i = 0; i < kPerThread && t0 + i < chunk.n; ++i) {
    const int64_t t = t0 + i;
    bool listed;
    if constexpr (kList == 0) {
      listed = inherited_by_any(chunk, t);
      odd |= is_odd(view.given_inverse[t]);
      for (int set = 0; set < chunk.n_sets; ++set)
        view.verdict[set * chunk.n + t] = static_cast<uint8_t>(CoverVerdict::kPending);
    } else {
      listed = is_open(view, t) && view.lists[0].rank[t] == view.lists[0].rank[t + 1];
    }
    if (listed) marked |= 1u << i;
  }
  const Ranks ranks = rank_marked(marked, shared);
  unsigned long long products = 0;
  for (int i = 0; i < kPerThread && t0 + i < chunk.n; ++i) {
    const int rank = ranks.of(marked, i);
    list.rank[t0 + i] = rank;
    if ((marked >> i & 1) != 0) list.token[rank] = static_cast<int32_t>(t0 + i);
    products += static_cast<unsigned>(rank);
    if (kList == 0) products += static_cast<unsigned>(*chunk.n_columns);
  }
  for (int step = 16; step > 0; step /= 2) products += __shfl_xor_sync(kAll, products, step);
  // Pairs, without the padding of tiles and without second looks.
  if (threadIdx.x % 32 == 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(view.products), products);
  if (kList == 0) odd = __syncthreads_or(odd ? 1 : 0) != 0;
  if (threadIdx.x != 0) return;
  list.rank[chunk.n] = ranks.total;
  view.tickets[kList] = 0;
  if (kList == 0) *view.odd = odd ? 1 : 0;
}

// Rows of the second list, behind the first.
__global__ void copy_listed(const __grid_constant__ CoverView view) {
  const ChunkView& chunk = view.chunk;
  const ListedTokens& list = view.lists[1];
  const int64_t n = list.rank[chunk.n];
  const int64_t first = (view.lists[0].rank[chunk.n] + kColumns - 1) / kColumns * kColumns;
  const bool given = as_given(chunk);
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const int64_t t = list.token[i];
    const uint16_t* from =
        given ? chunk.given + t * chunk.given_stride : chunk.rows + t * chunk.padded;
    const auto* source = reinterpret_cast<const uint4*>(from);
    auto* target = reinterpret_cast<uint4*>(view.listed + (first + i) * chunk.padded);
    for (int64_t j = threadIdx.x; j < chunk.padded / 8; j += blockDim.x) target[j] = source[j];
    if (threadIdx.x == 0) view.listed_scale[first + i] = chunk.scale[t];
  }
}

// The pieces of bits that a token has: of kept columns, of the first list before it, and of the
// second.
struct Pieces {
  const uint4* data;
  int old, first, all;  // pieces of kept columns; with the first list; with both
  int skipped;          // pieces of the first list that are all behind the token
  int lane;

  __device__ Pieces(const CoverView& view, int set, int64_t t, bool second) {
    const auto tiles = [](int n) { return (n + kColumns - 1) / kColumns; };
    const int64_t n = view.chunk.n;
    const int listed = tiles(view.lists[0].rank[t]);
    data = view.bits + (set * n + t) * view.tiles * 4;
    old = 4 * tiles(*view.chunk.n_columns);
    first = old + 4 * listed;
    all = first + (second ? 4 * tiles(view.lists[1].rank[t]) : 0);
    skipped = 4 * (tiles(view.lists[0].rank[n]) - listed);
    lane = static_cast<int>(threadIdx.x) % 32;
  }
  __device__ uint4 at(int i) const {
    return i < all ? data[i < first ? i : i + skipped] : make_uint4(0, 0, 0, 0);
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

// Leaves the bits of columns that count.
template <typename Counts>
__device__ uint32_t counting(const CoverView& view, const Pieces& pieces, int i, int word,
                             uint32_t bits, const Counts& counts) {
  uint32_t left = bits;
  for (; bits != 0; bits &= bits - 1) {
    const int bit = __ffs(static_cast<int>(bits)) - 1;
    if (!counts(column_of(view, pieces, i, word, bit))) left &= ~(1u << bit);
  }
  return left;
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
template <typename Counts>
__device__ bool is_covered(const CoverView& view, const Pieces& pieces, int set, int64_t t,
                           int begin, const Counts& counts) {
  for (int i = begin; i < pieces.all; i += 32) {
    const uint4 piece = pieces.at(i + pieces.lane);
    const bool sure = counting(view, pieces, i + pieces.lane, 0, piece.z, counts) != 0 ||
                      counting(view, pieces, i + pieces.lane, 1, piece.w, counts) != 0;
    if (__any_sync(kAll, sure)) return true;
  }
  const double threshold = view.chunk.thresholds[set];
  for (int i = begin; i < pieces.all; i += 32) {
    const int mine = i + pieces.lane;
    const uint4 piece = pieces.at(mine);
    const uint32_t x = counting(view, pieces, mine, 0, piece.x & ~piece.z, counts);
    const uint32_t y = counting(view, pieces, mine, 1, piece.y & ~piece.w, counts);
    if (any_of(view, pieces, mine, x, y, [&](const Column& column) {
          return reaches(pair_of(view.chunk, t, column), false, threshold);
        }))
      return true;
  }
  return false;
}

// What a token has come to; waits while it is `open`.
__device__ CoverVerdict verdict_of(const CoverView& view, int set, int64_t t, CoverVerdict open) {
  const volatile uint8_t* verdict = view.verdict + set * view.chunk.n + t;
  uint8_t found = *verdict;
  while (found == static_cast<uint8_t>(open)) found = *verdict;
  return static_cast<CoverVerdict>(found);
}

__device__ void publish(const CoverView& view, int set, int64_t t, CoverVerdict verdict) {
  volatile uint8_t* to = view.verdict + set * view.chunk.n + t;
  if (threadIdx.x % 32 == 0) *to = static_cast<uint8_t>(verdict);
}

// The token and set that a warp takes; false where there is none left.
__device__ bool take_ticket(const CoverView& view, int list, int64_t* t, int* set) {
  int ticket = 0;
  if (threadIdx.x % 32 == 0) ticket = atomicAdd(view.tickets + list, 1);
  ticket = __shfl_sync(kAll, ticket, 0);
  *t = ticket / view.chunk.n_sets;
  *set = ticket % view.chunk.n_sets;
  return *t < view.chunk.n;
}

// Keeps inherited tokens that no earlier kept one covers; tells covered tokens from open ones.
__global__ void keep_inherited(const __grid_constant__ CoverView view) {
  const ChunkView& chunk = view.chunk;
  int64_t t;
  int set;
  if (!take_ticket(view, 0, &t, &set)) return;
  if (chunk.exempt[t] != 0) return publish(view, set, t, CoverVerdict::kAside);
  if (chunk.thresholds[set] <= 0) return publish(view, set, t, CoverVerdict::kKept);
  const bool inherited = is_inherited(chunk, set, t);
  const uint8_t mask = chunk.rule.deciding(inherited);
  const auto counts = [&](const Column& column) {
    if (column.is_kept) return (chunk.flags[set * chunk.capacity + column.index] & mask) != 0;
    return is_inherited(chunk, set, column.index) &&
           verdict_of(view, set, column.index, CoverVerdict::kPending) == CoverVerdict::kKept;
  };
  const bool covered = is_covered(view, Pieces(view, set, t, false), set, t, 0, counts);
  publish(view, set, t,
          covered     ? CoverVerdict::kCovered
          : inherited ? CoverVerdict::kKept
                      : CoverVerdict::kOpen);
}

__device__ Nearest nearest_of(const ChunkView& view, const Column& column) {
  return {column.is_kept ? view.position[column.index] : view.first + column.index, 0, false,
          column.is_kept, column.index};
}

// The owner of a covered token. It is at the threshold, as whoever covers it is.
__device__ Nearest owner_of(const CoverView& view, const Pieces& pieces, int set, int64_t t) {
  const ChunkView& chunk = view.chunk;
  const auto counts = [&](const Column& column) {
    if (column.is_kept) return (chunk.flags[set * chunk.capacity + column.index] & kIsRep) != 0;
    const CoverVerdict found = verdict_of(view, set, column.index, CoverVerdict::kOpen);
    return found == CoverVerdict::kKept || found == CoverVerdict::kAdded;
  };
  const auto for_contenders = [&](const auto& visit) {
    for (int i = 0; i < pieces.all; i += 32) {
      const int mine = i + pieces.lane;
      const uint4 piece = pieces.at(mine);
      const uint32_t x = counting(view, pieces, mine, 0, piece.x, counts);
      const uint32_t y = counting(view, pieces, mine, 1, piece.y, counts);
      any_of(view, pieces, mine, x, y, [&](const Column& column) {
        visit(column);
        return false;
      });
    }
  };
  int n_contenders = 0;
  Nearest best;
  for_contenders([&](const Column& column) {
    if (++n_contenders == 1) best = nearest_of(chunk, column);
  });
  if (n_contenders == 1 && !chunk.want_cosines) return best;

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
  const Pieces pieces(view, set, t, true);
  auto verdict = static_cast<CoverVerdict>(view.verdict[set * chunk.n + t]);
  if (verdict == CoverVerdict::kOpen) {
    const auto counts = [&](const Column& column) {
      return !is_inherited(chunk, set, column.index) &&
             verdict_of(view, set, column.index, CoverVerdict::kOpen) == CoverVerdict::kAdded;
    };
    verdict = is_covered(view, pieces, set, t, pieces.old, counts) ? CoverVerdict::kCovered
                                                                   : CoverVerdict::kAdded;
    publish(view, set, t, verdict);
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
  list_tokens<0><<<1, kListThreads, 0, stream>>>(view);
  check_launch("list_tokens");
  place_rows(context, view, rows);
  multiply_cover(context, view, 0);
  keep_inherited<<<warps, 32 * kWarps, 0, stream>>>(view);
  check_launch("keep_inherited");
  list_tokens<1><<<1, kListThreads, 0, stream>>>(view);
  check_launch("list_tokens");
  copy_listed<<<static_cast<unsigned>(2 * context.multiprocessors()), 128, 0, stream>>>(view);
  check_launch("copy_listed");
  multiply_cover(context, view, 1);
  add_and_own<<<warps, 32 * kWarps, 0, stream>>>(view);
  check_launch("add_and_own");
}

}  // namespace sluice::cuda
