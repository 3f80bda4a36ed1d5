// The owners of a chunk's tokens, when its representatives are known.

#include "backend/cuda/primitives/block_scan.cuh"
#include "backend/cuda/primitives/warp.cuh"
#include "backend/cuda/selection/common/nearest.cuh"
#include "backend/cuda/selection/common/splits.cuh"
#include "backend/cuda/selection/gram/reduce.cuh"

namespace sluice::impl::cuda::selection {
namespace {

constexpr int kWarps = 8;   // of a block: one token each
constexpr int kBlocks = 3;  // of a multiprocessor

__device__ bool is_rep(const ChunkView& view, int set, int64_t t) {
  return view.sets.status[set * view.sets.stride + view.first + t] ==
         static_cast<uint8_t>(TokenStatus::kRepresentative);
}

// The largest cosines with representatives of the chunk, each lane's own: tokens lane, lane + 32, …
__device__ Largest largest_local(const ChunkView& view, int set, int64_t t) {
  constexpr int kAhead = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Largest best = none_yet();
  if (view.scratch.local == nullptr) return best;
  const float* cosines = view.scratch.local + t * kChunk;
  for (int first = lane; first < t; first += 32 * kAhead) {
    float cosine[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int s = first + 32 * i;
      cosine[i] = s < t && is_rep(view, set, s) ? cosines[s] : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) insert(best, cosine[i], first + 32 * i);
  }
  return best;
}

// The owner's cosine as the products have it, or -INFINITY where nobody could be it.
__device__ float largest_product(const ChunkView& view, int set, int64_t t, const Largest& local) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float largest = local.first;
  for (int split = lane; split < splits_with_columns(view); split += 32)
    largest = fmaxf(largest, largest_of(view, set, 0, split, t).first);
  return warp_max(largest);
}

// Calls visit on every candidate that may be the nearest: whose product is at least this.
template <typename Visit>
__device__ void for_contenders(const ChunkView& view, int set, int64_t t, double least,
                               const Largest& local, const Visit& visit) {
  const auto column = [&](int64_t c) {
    visit(Nearest{.position = view.kept.position[c], .is_column = true, .index = c});
    return false;
  };
  any_split(view, set, 0, t, least, [&](int split, const Largest& found) {
    if (found.third >= least) return any_column(view, set, kIsRep, split, column);
    column(found.column);
    return found.second >= least && column(found.second_column);
  });
  const auto tokens = [&](bool counts, int32_t token) {
    for (uint32_t bits = __ballot_sync(kAllLanes, counts); bits != 0; bits &= bits - 1) {
      const int32_t s = __shfl_sync(kAllLanes, token, __ffs(static_cast<int>(bits)) - 1);
      visit(Nearest{.position = view.first + s, .index = s});
    }
  };
  const bool more = local.third >= least;  // than two of the lane's own
  tokens(!more && local.first >= least, local.column);
  tokens(!more && local.second >= least, local.second_column);
  for (uint32_t lanes = __ballot_sync(kAllLanes, more); lanes != 0; lanes &= lanes - 1)
    for (int s = __ffs(static_cast<int>(lanes)) - 1; s < t; s += 32)
      if (is_rep(view, set, s)) visit(Nearest{.position = view.first + s, .index = s});
}

__global__ void __launch_bounds__(32 * kWarps, kBlocks)
    owners(const __grid_constant__ ChunkView view) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int set = static_cast<int>(blockIdx.y);
  if (t >= view.n) return;
  const int64_t at = set * view.sets.stride + view.first + t;
  int64_t owner = view.first + t;
  bool owned = true;
  double cosine = 1;
  const auto status = static_cast<TokenStatus>(view.sets.status[at]);
  const bool asks = status == TokenStatus::kRedundant || status == TokenStatus::kUncovered;
  if (asks) {
    const Largest local = largest_local(view, set, t);
    const float largest = largest_product(view, set, t, local);
    const double threshold = view.thresholds[set];
    Nearest best;
    int n_contenders = 0;
    const double least = double{largest} - 2 * view.slack;
    if (largest > -INFINITY) {
      for_contenders(view, set, t, least, local, [&](const Nearest& next) {
        if (++n_contenders == 1) best = next;
      });
      const bool clear = fabs(double{largest} - threshold) > view.slack;
      if (n_contenders == 1 && clear && !view.want_cosines) {
        best.cosine = largest;
      } else {
        best = {};
        for_contenders(view, set, t, least, local,
                       [&](const Nearest& next) { consider(view, t, best, next); });
        if (view.want_cosines || fabs(best.cosine - threshold) <= best.error)
          make_ordered(view, t, best);
      }
      owner = best.position;
    }
    owned = best.position >= 0 && best.cosine >= threshold;
    cosine = best.position >= 0 ? best.cosine : -1.0;
  }
  if (threadIdx.x % 32 != 0) return;
  view.sets.owner[at] = static_cast<int32_t>(owner);
  if (asks)
    view.sets.status[at] =
        static_cast<uint8_t>(owned ? TokenStatus::kRedundant : TokenStatus::kUncovered);
  if (view.want_cosines) view.sets.cosine[at] = static_cast<float>(cosine);
}

// A block to a set.
constexpr int kNumberThreads = 1024;

__global__ void __launch_bounds__(kNumberThreads) number(const __grid_constant__ NumberView view) {
  __shared__ int sums[kNumberThreads / 32];
  const int set = static_cast<int>(blockIdx.x);
  const uint8_t* status = view.status + set * view.set_stride;
  const int32_t* owner = view.owner + set * view.set_stride;
  int32_t* cluster = view.cluster + set * view.set_stride;
  const auto redundant = [&](int64_t t) {
    return status[t] == static_cast<uint8_t>(TokenStatus::kRedundant);
  };
  int n_clusters = 0;
  for (int64_t first = 0; first < view.n; first += kNumberThreads) {
    const int64_t t = first + threadIdx.x;
    const bool counts = t < view.n && !redundant(t);
    int all = 0;
    const int at = place_among(counts, sums, &all);
    if (counts) cluster[t] = n_clusters + at;
    n_clusters += all;
  }
  __syncthreads();
  for (int64_t t = threadIdx.x; t < view.n; t += kNumberThreads)
    if (redundant(t)) cluster[t] = cluster[owner[t]];
  if (threadIdx.x != 0) return;
  view.counts[1 + set] = n_clusters;
  if (set == 0) *view.products += view.n * view.counts[0];
}

}  // namespace

void find_owners(Context& context, const ChunkView& view) {
  const dim3 grid(static_cast<unsigned>(ceil_div(view.n, kWarps)),
                  static_cast<unsigned>(view.n_sets));
  owners<<<grid, 32 * kWarps, 0, context.stream()>>>(view);
  check_launch("owners");
}

void number_clusters(Context& context, const NumberView& view) {
  number<<<static_cast<unsigned>(view.n_sets), kNumberThreads, 0, context.stream()>>>(view);
  check_launch("number");
}

}  // namespace sluice::impl::cuda::selection
