// Who belongs to which cluster among the tokens of a range: linked, put side by side and marked.
//
// Every warp has clusters of its own and meets their members in their order, so nothing is sorted.
// A block looks at all tokens, and its warps at those that belong to any of them: for n tokens, n
// looks of 128 blocks, once for every 65536 clusters that there might be.

#include "backend/cuda/attention/keys/kernels.h"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::keys {
namespace {

constexpr int kLinkWarps = 2048, kBlockWarps = 16;
constexpr int kAtOnce = 32 * kLinkWarps;  // clusters: one to a lane
constexpr int kLooks = 8;                 // tokens of a thread at a time
constexpr int kChunk = kLooks * 32 * kBlockWarps;
constexpr uint32_t kAll = 0xffffffffu;

// What the blocks of a link share; zero before it and after.
struct Common {
  int32_t n_placed;  // members
  int32_t largest;   // cluster
  int32_t longest;   // members of one
};
constexpr int64_t kCommonWords = 3;
static_assert(sizeof(Common) == kCommonWords * sizeof(int32_t));

// What a lane knows of its cluster.
struct Met {
  int32_t count = 0, last = -1;  // members so far and the last of them
};

// The members of one cluster, lanes of `same`, each with its token.
__device__ void join(const MembersView& members, Met& met, int32_t cluster, uint32_t same,
                     int32_t token) {
  const int lane = static_cast<int>(threadIdx.x) % 32, owner = cluster % kAtOnce / kLinkWarps;
  const int32_t count = __shfl_sync(kAll, met.count, owner);
  const int32_t last = __shfl_sync(kAll, met.last, owner);
  const uint32_t before = same & ((1u << lane) - 1);
  const int32_t neighbour = __shfl_sync(kAll, token, 31 - __clz(static_cast<int>(before | 1)));
  const int32_t newest = __shfl_sync(kAll, token, 31 - __clz(static_cast<int>(same)));
  if ((same >> lane & 1) != 0) {
    const int32_t here = static_cast<int32_t>(members.first) + token;
    const int32_t previous = before != 0 ? neighbour : last;
    members.counts[token] = count + __popc(before) + 1;
    if (previous >= 0)
      members.next[previous] = here;
    else
      members.first_new[cluster] = here;
  }
  if (lane == owner) {
    met.count += __popc(same);
    met.last = newest;
  }
}

// Sums of a lane's numbers over the lanes before it, and over the block.
struct Places {
  int32_t before, all;
};
__device__ Places places_of(int32_t count, int32_t (&of_warp)[kBlockWarps]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int32_t up_to = count;
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(kAll, up_to, step);
    if (lane >= step) up_to += other;
  }
  if (lane == 31) of_warp[warp] = up_to;
  __syncthreads();
  Places places{up_to - count, 0};
  for (int w = 0; w < kBlockWarps; ++w) {
    if (w < warp) places.before += of_warp[w];
    places.all += of_warp[w];
  }
  return places;
}

// Gives the clusters that a block has met, one to a lane, their places.
__device__ void place(const MembersView& members, const Met& met, int64_t cluster, Common* common) {
  __shared__ int32_t of_warp[kBlockWarps], first, largest, longest;
  if (threadIdx.x == 0) largest = longest = 0;
  const Places places = places_of(met.count, of_warp);
  if (met.count > 0) {
    atomicMax(&largest, static_cast<int32_t>(cluster));
    atomicMax(&longest, met.count);
  }
  if (threadIdx.x == 0) first = atomicAdd(&common->n_placed, places.all);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicMax(&common->largest, largest);
    atomicMax(&common->longest, longest);
  }
  if (cluster >= members.n_clusters) return;
  members.begins[cluster] = first + places.before;
  if (met.count == 0)
    members.first_new[cluster] = INT32_MAX;
  else
    members.next[met.last] = INT32_MAX;
}

// Those of a chunk of tokens that belong to clusters of a block, in their order.
struct Found {
  int32_t clusters[kChunk], tokens[kChunk];
  int32_t of_warp[kBlockWarps];

  // How many; base: the first cluster that counts.
  __device__ int find(const LinkArgs& args, int64_t first, int64_t base) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t from = first + warp * (32 * kLooks) + lane;
    int32_t cluster[kLooks];
    uint32_t ours[kLooks];
#pragma unroll
    for (int k = 0; k < kLooks; ++k)
      cluster[k] = from + 32 * k < args.members.n ? args.cluster[from + 32 * k] : -1;
    int n_here = 0;
#pragma unroll
    for (int k = 0; k < kLooks; ++k) {
      const auto at = static_cast<uint32_t>(cluster[k] - static_cast<int32_t>(base));
      ours[k] = __ballot_sync(
          kAll, cluster[k] >= 0 && at < kAtOnce && at % kLinkWarps / kBlockWarps == blockIdx.x);
      n_here += __popc(ours[k]);
    }
    __syncthreads();  // all have looked at those before
    if (lane == 0) of_warp[warp] = n_here;
    __syncthreads();
    int place = 0, n = 0;
    for (int w = 0; w < kBlockWarps; ++w) {
      if (w < warp) place += of_warp[w];
      n += of_warp[w];
    }
#pragma unroll
    for (int k = 0; k < kLooks; ++k) {
      if ((ours[k] >> lane & 1) != 0) {
        const int at = place + __popc(ours[k] & ((1u << lane) - 1));
        clusters[at] = cluster[k];
        tokens[at] = static_cast<int32_t>(from) + 32 * k;
      }
      place += __popc(ours[k]);
    }
    __syncthreads();
    return n;
  }
};

__global__ void __launch_bounds__(32 * kBlockWarps)
    link(const __grid_constant__ LinkArgs args, Common* common) {
  __shared__ Found found;
  const MembersView& members = args.members;
  launch_dependents();
  wait_on_dependency();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(blockIdx.x) * kBlockWarps + static_cast<int>(threadIdx.x) / 32;
  for (int64_t base = 0; base < members.n_clusters; base += kAtOnce) {
    Met met;
    for (int64_t first = 0; first < members.n; first += kChunk) {
      const int n = found.find(args, first, base);
      for (int i = lane; i - lane < n; i += 32) {
        const int32_t cluster = i < n ? found.clusters[i] : -1;
        const int32_t token = i < n ? found.tokens[i] : 0;
        const bool ours = i < n && cluster % kLinkWarps == warp;
        for (uint32_t left = __ballot_sync(kAll, ours); left != 0;) {
          const int32_t one = __shfl_sync(kAll, cluster, __ffs(static_cast<int>(left)) - 1);
          const uint32_t same = __ballot_sync(kAll, cluster == one);
          join(members, met, one, same, token);
          left &= ~same;
        }
      }
    }
    place(members, met, base + int64_t{lane} * kLinkWarps + warp, common);
  }
}

__global__ void mark(const __grid_constant__ LinkArgs args, Common* common) {
  const MembersView& members = args.members;
  launch_dependents();
  wait_on_dependency();
  const int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token == 0) {
    *args.extent = {common->largest, common->longest};
    *common = {0, 0, 0};
  }
  if (token >= members.n) return;
  const int32_t cluster = args.cluster[token], next = members.next[token];
  const int32_t rank = members.counts[token] - 1, p = members.begins[cluster] + rank;
  const auto here = static_cast<int32_t>(members.first + token);
  const bool old = cluster < args.n_before;
  const int32_t count = (old ? args.counts_before[cluster] : 0) + rank + 1;
  int32_t marks = 0;
  if (next == INT32_MAX || here / members.block != next / members.block) marks |= kSeen;
  if (rank % kSegment == 0) marks |= kBegins;
  if (rank == 0) marks |= kFirst;
  if (next == INT32_MAX) marks |= kLast;
  if (old) marks |= kOld;
  // One member of a cluster stands for itself.
  const auto stands_for_itself = [&](int64_t i) {
    return args.status[i] != static_cast<uint8_t>(TokenStatus::kRedundant);
  };
  if (!old && stands_for_itself(members.first_new[cluster] - members.first)) marks |= kOwnFirst;
  if (stands_for_itself(token)) members.own[cluster] = static_cast<int32_t>(token);
  members.order[p] = static_cast<int32_t>(token);
  members.clusters[p] = cluster;
  members.marked[p] = static_cast<int32_t>(token) * kMarks + marks;
  members.counts[token] = members.counts_there[p] = count;
  args.kept_status[token] = args.status[token];
}

}  // namespace

void link_members(Context& context, const LinkArgs& args) {
  const MembersView& members = args.members;
  SLUICE_CHECK(members.n > 0 && members.n <= INT32_MAX / kMarks - 1 &&
               members.first + members.n <= INT32_MAX / 2 - 1 &&
               members.n_clusters <= INT32_MAX - kAtOnce);
  auto* common = reinterpret_cast<Common*>(context.zeros(kCommonWords));
  launch_programmatic(context, "link", link, kLinkWarps / kBlockWarps, 32 * kBlockWarps, args,
                      common);
  launch_programmatic(context, "mark", mark, static_cast<unsigned>(ceil_div(members.n, 256)), 256,
                      args, common);
}

}  // namespace sluice::impl::cuda::keys
