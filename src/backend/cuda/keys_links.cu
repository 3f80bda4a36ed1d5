// Who belongs to which cluster among the tokens of a range: sorted, linked and marked.

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "backend/cuda/keys_kernels.h"

namespace sluice::cuda {
namespace {

__global__ void begin_links(MembersView members, int32_t* tokens) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < members.n) tokens[i] = static_cast<int32_t>(i);
  if (i < members.n_clusters) members.first_new[i] = INT32_MAX;
}

__global__ void link(const __grid_constant__ LinkArgs args) {
  const MembersView& members = args.members;
  const int64_t p = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (p >= members.n) return;
  const int32_t token = members.order[p], cluster = members.clusters[p];
  const bool last = p + 1 == members.n || members.clusters[p + 1] != cluster;
  members.next[token] =
      last ? INT32_MAX : static_cast<int32_t>(members.first + members.order[p + 1]);
  if (p == 0 || members.clusters[p - 1] != cluster) {
    members.first_new[cluster] = static_cast<int32_t>(members.first + token);
    members.begins[cluster] = static_cast<int32_t>(p);
  }
  if (args.status[token] != static_cast<uint8_t>(TokenStatus::kRedundant))
    members.own[cluster] = token;
}

__global__ void mark(const __grid_constant__ LinkArgs args) {
  const MembersView& members = args.members;
  const int64_t p = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (p >= members.n) return;
  const int32_t token = members.order[p], cluster = members.clusters[p];
  const int32_t next = members.next[token], begin = members.begins[cluster];
  const auto here = static_cast<int32_t>(members.first + token),
             rank = static_cast<int32_t>(p) - begin;
  const bool old = cluster < args.n_before;
  const int32_t count = (old ? args.counts_before[cluster] : 0) + rank + 1;
  members.counts[token] = members.counts_there[p] = count;
  int32_t marks = 0;
  if (next == INT32_MAX || here / members.block != next / members.block) marks |= kSeen;
  if (rank % kSegment == 0) marks |= kBegins;
  if (rank == 0) marks |= kFirst;
  if (next == INT32_MAX) marks |= kLast;
  if (old) marks |= kOld;
  if (!old && members.own[cluster] == members.order[begin]) marks |= kOwnFirst;
  members.marked[p] = token * kMarks + marks;
}

unsigned blocks(int64_t n, int64_t size) { return static_cast<unsigned>(ceil_div(n, size)); }

}  // namespace

void link_members(const std::shared_ptr<Context>& context, const LinkArgs& args) {
  const MembersView& members = args.members;
  SLUICE_CHECK(members.n > 0 && members.n <= INT32_MAX / kMarks - 1 &&
               members.first + members.n <= INT32_MAX / 2 - 1 && members.n_clusters <= INT32_MAX);
  const auto n = static_cast<int>(members.n);
  const cudaStream_t stream = context->stream();
  const DeviceArray<int32_t> tokens(context, n);
  begin_links<<<blocks(std::max(members.n, members.n_clusters), 256), 256, 0, stream>>>(
      members, tokens.data());
  check_launch("begin_links");
  size_t bytes = 0;
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(members.n_clusters)));
  const auto sort = [&](void* memory) {
    check(cub::DeviceRadixSort::SortPairs(memory, bytes, args.cluster, members.clusters,
                                          tokens.data(), members.order, n, 0, bits, stream),
          "sorting tokens");
  };
  sort(nullptr);
  const DeviceArray<std::byte> memory(context, static_cast<int64_t>(bytes));
  sort(memory.data());
  link<<<blocks(n, 256), 256, 0, stream>>>(args);
  check_launch("link");
  mark<<<blocks(n, 256), 256, 0, stream>>>(args);
  check_launch("mark");
}

}  // namespace sluice::cuda
