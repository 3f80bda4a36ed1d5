// cascade-cover, docs/algorithm.md section 2, by comparing tokens with listed ones alone: with the
// inherited ones before them; then, where no kept one covers them, with each other; and everybody
// with these, since they may own.
//
// Tokens are decided in parallel, each as soon as those that its decision hangs on are decided.
// Blocks take them in an order in which nobody waits but for warps that already run.

#include <algorithm>

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/selection/common/levels.cuh"
#include "backend/cuda/selection/common/nearest.cuh"

namespace sluice::impl::cuda::selection {
namespace {

constexpr int kWarps = 8;  // of a block: one token each

// Whether a column that counts is at the threshold; pieces from `begin` on. First who is decided
// and certain, then who is waited for, then who is summed again.
__device__ bool is_covered(const CoverView& view, const Pieces& pieces, int set, int64_t t,
                           int begin, uint8_t mask) {
  bool open = false, doubtful = false;
  if (pieces.any(begin, [&](int i, const uint2& piece) {
        const Counting found = look(pieces, i, piece.y, mask);
        open |= __any_sync(kAllLanes, found.open != 0) != 0;
        doubtful |= __any_sync(kAllLanes, (piece.x & ~piece.y) != 0) != 0;
        return __any_sync(kAllLanes, found.yes != 0) != 0;
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

// Where a token's mark is, while a list is decided: read before it is decided, since others wait.
struct MarkPlace {
  bool exists;
  int tile, at;

  __device__ MarkPlace(const CoverView& view, int list, int64_t t) {
    const int32_t* rank = view.lists[0].rank;
    const int in_first = rank[t], behind = rank[t + 1], in_both = rank[view.chunk.n];
    const int in_second = list == 1 && !view.whole ? view.lists[1].rank[t] : 0;
    const bool is_first = behind > in_first;
    exists = is_first || list == 1;
    tile = is_first ? 0 : tiles_of(in_both);
    at = is_first ? in_first : in_second;
  }
};

// What has become of a token, for those that wait while a list is decided.
__device__ void publish(const CoverView& view, int list, int set, int64_t t, const MarkPlace& place,
                        CoverDecision decision) {
  if (threadIdx.x % 32 != 0) return;
  const bool is_rep = decision == CoverDecision::kKept || decision == CoverDecision::kAdded;
  if (place.exists) mark(marks_of(view, list, set), place.tile, place.at, is_rep);
  view.decision[set * view.chunk.n + t] = static_cast<uint8_t>(decision);
}

// Warps call decide(t, set) in order of position. Where there is one set, tokens of the list come
// first: the others wait for them, and they wait for no others. One ticket per block: many atomics
// on one address are slow.
//
// Warps wait for warps of other blocks (any_counts, all_counting), but only for tokens of the same
// or a lower ticket. Whoever has drawn a ticket is resident and ends without those behind it, so no
// block waits for one that is not resident, and the launch need not be cooperative.
template <typename Decide>
__device__ void decide_in_order(const CoverView& view, int list, const Decide& decide) {
  __shared__ int ticket;
  const int n_sets = view.chunk.n_sets, n_decisions = static_cast<int>(view.chunk.n) * n_sets;
  while (true) {
    __syncthreads();  // the last ticket is read
    if (threadIdx.x == 0) ticket = atomicAdd(view.tickets + list, 1);
    __syncthreads();
    const int first = ticket * kWarps, i = first + static_cast<int>(threadIdx.x) / 32;
    if (first >= n_decisions) return;
    if (i >= n_decisions) continue;
    const bool as_listed = n_sets == 1 && !view.whole;
    decide(as_listed ? view.lists[list].token[i] : int64_t{i / n_sets}, i % n_sets);
  }
}

__device__ void keep_or_not(const CoverView& view, int64_t t, int set) {
  const ChunkView& chunk = view.chunk;
  // Loads in flight together.
  const bool exempt = chunk.rows.exempt[t] != 0, inherited = chunk.is_inherited(set, t);
  const double threshold = chunk.thresholds[set];
  const MarkPlace place(view, 0, t);
  const Pieces pieces(view, set, t, 0);
  const auto tell = [&](CoverDecision decision) { publish(view, 0, set, t, place, decision); };
  if (exempt) return tell(CoverDecision::kAside);
  if (threshold <= 0) return tell(CoverDecision::kKept);
  // A token that another set inherits counts for nobody here.
  if (!inherited) tell(CoverDecision::kOpen);
  const bool covered = is_covered(view, pieces, set, t, 0, chunk.rule.deciding(inherited));
  if (inherited)
    tell(covered ? CoverDecision::kCovered : CoverDecision::kKept);
  else if (covered && threadIdx.x % 32 == 0)
    view.decision[set * chunk.n + t] = static_cast<uint8_t>(CoverDecision::kCovered);
}

// Keeps inherited tokens that no earlier kept one covers; tells covered tokens from open ones.
constexpr int kKeepBlocks = 5;  // of a multiprocessor
__global__ void __launch_bounds__(32 * kWarps, kKeepBlocks)
    keep_inherited(const __grid_constant__ CoverView view) {
  wait_on_dependency();
  launch_dependents();
  decide_in_order(view, 0, [&](int64_t t, int set) { keep_or_not(view, t, set); });
}

__device__ Nearest nearest_of(const ChunkView& view, const Column& column) {
  return {.position = column.is_kept ? view.kept.position[column.index] : view.first + column.index,
          .is_column = column.is_kept,
          .index = column.index};
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
    n_contenders += __reduce_add_sync(kAllLanes, __popc(counting));
    return false;
  });
  if (n_contenders > 1) n_contenders = drop_far(view, pieces, set, t);
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

__device__ void add_or_own(const CoverView& view, int64_t t, int set) {
  const ChunkView& chunk = view.chunk;
  auto decision = static_cast<CoverDecision>(view.decision[set * chunk.n + t]);
  const MarkPlace place(view, 1, t);
  const Pieces pieces(view, set, t, 1);
  if (decision == CoverDecision::kOpen) {
    // No kept one is at its threshold, so that those added decide: of the first list, tokens that
    // only another set inherits.
    const int begin = chunk.n_sets == 1 && !view.whole ? pieces.first : pieces.old;
    decision = is_covered(view, pieces, set, t, begin, kIsRep) ? CoverDecision::kCovered
                                                               : CoverDecision::kAdded;
    publish(view, 1, set, t, place, decision);
  } else if (view.whole) {
    publish(view, 1, set, t, place, decision);
  }
  Nearest owner;
  owner.position = chunk.first + t;
  owner.cosine = 1;
  if (decision == CoverDecision::kCovered) owner = owner_of(view, pieces, set, t);
  if (threadIdx.x % 32 != 0) return;
  const TokenStatus status = decision == CoverDecision::kAside     ? TokenStatus::kExempt
                             : decision == CoverDecision::kCovered ? TokenStatus::kRedundant
                                                                   : TokenStatus::kRepresentative;
  const int64_t at = set * chunk.sets.stride + chunk.first + t;
  chunk.sets.status[at] = static_cast<uint8_t>(status);
  chunk.sets.owner[at] = static_cast<int32_t>(owner.position);
  if (chunk.want_cosines) chunk.sets.cosine[at] = static_cast<float>(owner.cosine);
}

// Decides open tokens in order, and finds owners.
constexpr int kOwnBlocks = 4;  // of a multiprocessor
__global__ void __launch_bounds__(32 * kWarps, kOwnBlocks)
    add_and_own(const __grid_constant__ CoverView view) {
  wait_on_dependency();
  launch_dependents();
  decide_in_order(view, 1, [&](int64_t t, int set) { add_or_own(view, t, set); });
}

}  // namespace

void decide_cover(Context& context, const CoverView& view, const ConstTensor& rows) {
  const int64_t n_decisions = view.chunk.n * view.chunk.n_sets;
  SLUICE_CHECK(view.chunk.n <= kCoverChunk && n_decisions < INT32_MAX);
  const auto blocks = [&](int64_t of_multiprocessor) {
    const int64_t most = of_multiprocessor * context.multiprocessors();
    return dim3(static_cast<unsigned>(std::min(most, ceil_div(n_decisions, kWarps))));
  };
  const bool basis = view.basis.rank > 0;
  const auto multiply = [&](int list) {
    if (!basis) return multiply_cover(context, view, list);
    multiply_coordinates(context, view, list);
    if (list == 0 && !view.whole) copy_listed(context, view);
    multiply_cover_again(context, view, list);
  };
  list_inherited(context, view, rows);
  if (basis) project_cover(context, view);
  multiply(0);
  launch_programmatic(context, "keep_inherited", keep_inherited, blocks(kKeepBlocks), 32 * kWarps,
                      view);
  if (!view.whole) {
    list_open(context, view);
    multiply(1);
  }
  launch_programmatic(context, "add_and_own", add_and_own, blocks(kOwnBlocks), 32 * kWarps, view);
}

}  // namespace sluice::impl::cuda::selection
