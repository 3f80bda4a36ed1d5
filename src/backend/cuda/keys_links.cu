// Who belongs to which cluster among the tokens of a range: linked, put side by side and marked.
//
// Every warp has clusters of its own and looks at all tokens: it meets the members of a cluster in
// their order, so nothing is sorted. For n tokens that is n / 32 looks of 2048 warps.

#include "backend/cuda/keys_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kLinkWarps = 2048, kBlockWarps = 16;
constexpr int kAtOnce = 32 * kLinkWarps;  // clusters: one to a lane
constexpr int kChunk = 8192;              // tokens in shared memory
constexpr uint32_t kAll = 0xffffffffu;

// What the warps of a link share; zero before it and after.
struct Common {
  int32_t n_placed;  // members
  int32_t largest;   // cluster
};

// What a lane knows of its cluster.
struct Met {
  int32_t count = 0, last = -1;  // members so far and the last of them
};

// The members of one cluster, bits of `same`, among 32 tokens.
__device__ void join(const LinkArgs& args, Met& met, int32_t cluster, uint32_t same,
                     int32_t token) {
  const MembersView& members = args.members;
  const int lane = static_cast<int>(threadIdx.x) % 32, owner = cluster % kAtOnce / kLinkWarps;
  const int32_t count = __shfl_sync(kAll, met.count, owner);
  const int32_t last = __shfl_sync(kAll, met.last, owner);
  const uint32_t before = same & ((1u << lane) - 1);
  if ((same >> lane & 1) != 0) {
    const int32_t here = static_cast<int32_t>(members.first) + token;
    const int32_t previous =
        before != 0 ? token - lane + 31 - __clz(static_cast<int>(before)) : last;
    members.counts[token] = count + __popc(before) + 1;
    if (previous >= 0)
      members.next[previous] = here;
    else
      members.first_new[cluster] = here;
    if (args.status[token] != static_cast<uint8_t>(TokenStatus::kRedundant))
      members.own[cluster] = token;
  }
  if (lane == owner) {
    met.count += __popc(same);
    met.last = token - lane + 31 - __clz(static_cast<int>(same));
  }
}

// Places of the clusters that a warp has met, one to a lane.
__device__ void place(const MembersView& members, const Met& met, int64_t cluster, Common* common) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int32_t up_to = met.count;
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(kAll, up_to, step);
    if (lane >= step) up_to += other;
  }
  const int32_t all = __shfl_sync(kAll, up_to, 31);
  int32_t begin = 0;
  if (lane == 0 && all > 0) begin = atomicAdd(&common->n_placed, all);
  begin = __shfl_sync(kAll, begin, 0);
  if (cluster >= members.n_clusters) return;
  members.begins[cluster] = begin + up_to - met.count;
  if (met.count == 0) {
    members.first_new[cluster] = INT32_MAX;
  } else {
    members.next[met.last] = INT32_MAX;
    atomicMax(&common->largest, static_cast<int32_t>(cluster));
  }
}

__global__ void __launch_bounds__(32 * kBlockWarps)
    link(const __grid_constant__ LinkArgs args, Common* common) {
  constexpr int kLooks = 8;
  __shared__ int32_t chunk[kChunk];
  const MembersView& members = args.members;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(blockIdx.x) * kBlockWarps + static_cast<int>(threadIdx.x) / 32;
  for (int64_t base = 0; base < members.n_clusters; base += kAtOnce) {
    Met met;
    for (int64_t first = 0; first < members.n; first += kChunk) {
      const auto n = static_cast<int>(min(members.n - first, int64_t{kChunk}));
      __syncthreads();  // all have looked at the chunk before
      for (auto i = static_cast<int>(threadIdx.x); i < n + 32 * kLooks && i < kChunk;
           i += 32 * kBlockWarps)
        chunk[i] = i < n ? args.cluster[first + i] : -1;
      __syncthreads();
      for (int i = 0; i < n; i += 32 * kLooks) {
        int32_t clusters[kLooks];
#pragma unroll
        for (int k = 0; k < kLooks; ++k) clusters[k] = chunk[i + 32 * k + lane];
#pragma unroll
        for (int k = 0; k < kLooks; ++k) {
          const int32_t cluster = clusters[k];
          const auto at = static_cast<uint32_t>(cluster - static_cast<int32_t>(base));
          const bool ours = at < kAtOnce && at % kLinkWarps == static_cast<uint32_t>(warp);
          for (uint32_t left = __ballot_sync(kAll, ours); left != 0;) {
            const int32_t one = __shfl_sync(kAll, cluster, __ffs(static_cast<int>(left)) - 1);
            const uint32_t same = __ballot_sync(kAll, cluster == one);
            join(args, met, one, same, static_cast<int32_t>(first) + i + 32 * k + lane);
            left &= ~same;
          }
        }
      }
    }
    place(members, met, base + int64_t{lane} * kLinkWarps + warp, common);
  }
}

__global__ void mark(const __grid_constant__ LinkArgs args, Common* common) {
  const MembersView& members = args.members;
  const int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token == 0) {
    *args.largest = common->largest;
    *common = {0, 0};
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
  if (!old && members.own[cluster] == members.first_new[cluster] - members.first)
    marks |= kOwnFirst;
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
  auto* common = reinterpret_cast<Common*>(context.zeros(sizeof(Common) / sizeof(int32_t)));
  link<<<kLinkWarps / kBlockWarps, 32 * kBlockWarps, 0, context.stream()>>>(args, common);
  check_launch("link");
  mark<<<static_cast<unsigned>(ceil_div(members.n, 256)), 256, 0, context.stream()>>>(args, common);
  check_launch("mark");
}

}  // namespace sluice::cuda
